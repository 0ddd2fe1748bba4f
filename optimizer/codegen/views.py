"""Views, slices, concatenations and gathers of core ATen: regrouped axes and changed indexes, hardly an instruction."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from .aten import Translation, argument, dims_of, meta, register, result_dtype
from .axes import Unsupported
from .build import Tensor
from .program import Term

aten = torch.ops.aten


@register(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(t: Translation, node: fx.Node) -> Tensor:
    tensor = t.tensor(node.args[0])
    dims = t.builder.axes.regroup(tensor.dims, node.meta["val"].shape, str(node.target))
    return replace(tensor, dims=tuple(dims))


@register(aten.permute.default)
def _permute(t: Translation, node: fx.Node) -> Tensor:
    tensor = t.tensor(node.args[0])
    return replace(tensor, dims=tuple(tensor.dims[d] for d in node.args[1]))  # type: ignore[index, union-attr]


@register(aten.transpose.int, aten.t.default)
def _transpose(t: Translation, node: fx.Node) -> Tensor:
    tensor = t.tensor(node.args[0])
    order = list(range(len(tensor.dims)))
    first, second = node.args[1:] if len(node.args) > 1 else (0, len(order) - 1)
    if order:
        order[first], order[second] = order[second], order[first]  # type: ignore[index]
    return replace(tensor, dims=tuple(tensor.dims[d] for d in order))


@register(aten.unsqueeze.default)
def _unsqueeze(t: Translation, node: fx.Node) -> Tensor:
    tensor: Tensor = t.tensor(node.args[0])
    dim: Any = node.args[1]
    at: int = dim % (len(tensor.dims) + 1)
    return replace(tensor, dims=(*tensor.dims[:at], (), *tensor.dims[at:]))


@register(aten.squeeze.dims, aten.squeeze.dim, aten.squeeze.default)
def _squeeze(t: Translation, node: fx.Node) -> Tensor:
    tensor = t.tensor(node.args[0])
    gone = [
        d
        for d in dims_of(tensor, argument(node, 1, "dim", None))
        if t.builder.axes.size(t.builder.axes.leaves(tensor.dims[d])) == 1
    ]
    return replace(tensor, dims=t.builder.without(tensor.dims, gone, keep=False))


@register(aten.expand.default)
def _expand(t: Translation, node: fx.Node) -> Tensor:
    b, tensor, shape = t.builder, t.tensor(node.args[0]), node.meta["val"].shape
    dims: list[tuple[int, ...]] = [()] * (len(shape) - len(tensor.dims)) + list(tensor.dims)
    for dim, size in enumerate(shape):
        if size != 1 and b.axes.size(b.axes.leaves(dims[dim])) == 1:
            dims[dim] = (b.axes.new(size),)
    return replace(tensor, dims=tuple(dims))


@register(aten.slice.Tensor)
def _slice(t: Translation, node: fx.Node) -> Tensor:
    tensor, why = t.tensor(node.args[0]), str(node.target)
    (dim,) = dims_of(tensor, argument(node, 1, "dim", 0))
    size, length = meta(node.args[0]).shape[dim], node.meta["val"].shape[dim]
    start, step = argument(node, 2, "start", 0) or 0, argument(node, 4, "step", 1)
    if not isinstance(start, int) or length == 0:
        raise Unsupported(f"{why}: start {start}, length {length}")
    start = max(0, start + size if start < 0 else start)
    if length == size:
        return tensor
    if step == 1 and start % length == 0 and size % length == 0 and _all_pieces(node, dim, size, length):
        return t.builder.piece(tensor, dim, start // length, size // length, why)
    return t.builder.narrow(tensor, dim, start, step, length, why)


def _all_pieces(node: fx.Node, dim: int, size: int, length: int) -> bool:
    """Whether the source is sliced into all its equal parts, as a chunk or a rotation of halves does."""
    starts = set()
    for user in node.args[0].users:  # type: ignore[union-attr]
        same = user.target is aten.slice.Tensor and argument(user, 1, "dim", 0) % len(meta(node.args[0]).shape) == dim
        if same and user.meta["val"].shape[dim] == length:
            starts.add((argument(user, 2, "start", 0) or 0) % size)
    return starts == set(range(0, size, length))


@register(aten.split_with_sizes.default, aten.split.Tensor)
def _split(t: Translation, node: fx.Node) -> tuple[Tensor, ...]:
    tensor, why = t.tensor(node.args[0]), str(node.target)
    (dim,) = dims_of(tensor, argument(node, 2, "dim", 0))
    sizes = [v.shape[dim] for v in node.meta["val"]]
    if len(sizes) == 1:
        return (tensor,)
    if len(set(sizes)) == 1:
        return tuple(t.builder.piece(tensor, dim, n, len(sizes), why) for n in range(len(sizes)))
    return tuple(t.builder.narrow(tensor, dim, sum(sizes[:n]), 1, s, why) for n, s in enumerate(sizes))


@register(aten.select.int)
def _select(t: Translation, node: fx.Node) -> Tensor:
    tensor, position = t.tensor(node.args[0]), node.args[2]
    (dim,) = dims_of(tensor, node.args[1])
    if not isinstance(position, int):
        raise Unsupported(f"{node.target}: position {position} is not a number")
    if position < 0:
        position += meta(node.args[0]).shape[dim]
    return t.builder.select(tensor, dim, Term(position, ()), str(node.target))


@register(aten.cat.default)
def _cat(t: Translation, node: fx.Node) -> Tensor:
    given: Any = node.args[0]
    tensors = [t.tensor(a) for a in given]
    (dim,) = dims_of(tensors[0], argument(node, 1, "dim", 0))
    if len({meta(a).shape[dim] for a in given}) != 1:
        raise Unsupported(f"{node.target}: parts of different sizes are not one loop nest")
    dtype = result_dtype(node)
    return t.builder.stack(tensors, dim, dtype, str(node.target))


@register(aten.embedding.default)
def _embedding(t: Translation, node: fx.Node) -> Tensor:
    return _rows(t, t.tensor(node.args[0]), 0, t.tensor(node.args[1]), str(node.target))


@register(aten.index_select.default)
def _index_select(t: Translation, node: fx.Node) -> Tensor:
    tensor = t.tensor(node.args[0])
    (dim,) = dims_of(tensor, node.args[1])
    return _rows(t, tensor, dim, t.tensor(node.args[2]), str(node.target))


@register(aten.index.Tensor)
def _index(t: Translation, node: fx.Node) -> Tensor:
    tensor, indices = t.tensor(node.args[0]), list(node.args[1])  # type: ignore[arg-type]
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) != 1 or meta(given[0][1]).dtype is torch.bool:
        raise Unsupported(f"{node.target}: more than one index tensor, or a mask")
    dim, index = given[0][0], t.tensor(given[0][1])
    b = t.builder
    raw = b.cast(index.value, "int64")
    negative = b.compute("lt", (raw, b.constant(0, "int64")), "bool")
    wrapped = b.compute("add", (raw, b.size_of([tensor.dims[dim]], "int64")), "int64")
    return _rows(
        t, tensor, dim, replace(index, value=b.compute("where", (negative, wrapped, raw), "int64")), str(node.target)
    )


def _rows(t: Translation, tensor: Tensor, dim: int, index: Tensor, why: str) -> Tensor:
    value = t.builder.cast(index.value, "int64")
    taken = t.builder.select(tensor, dim, Term(1, (), value=value), why)
    return replace(taken, dims=(*taken.dims[:dim], *index.dims, *taken.dims[dim:]))


@register(aten.gather.default)
def _gather(t: Translation, node: fx.Node) -> Tensor:
    tensor, index, why = t.tensor(node.args[0]), t.tensor(node.args[2]), str(node.target)
    (dim,) = dims_of(tensor, node.args[1])
    shapes = meta(node.args[0]).shape, meta(node.args[2]).shape
    if any(a != b for d, (a, b) in enumerate(zip(*shapes, strict=True)) if d != dim):
        raise Unsupported(f"{why}: the index is smaller than the tensor in another dimension")
    # The gathered dimension takes no part in the broadcast: the tensor has none there, the index its own.
    (kept, index_), dims = t.builder.align([replace(tensor, dims=_without(tensor, dim)), index], why)
    assert isinstance(kept, Tensor)
    assert isinstance(index_, Tensor)
    tensor = replace(kept, dims=(*kept.dims[:dim], tensor.dims[dim], *kept.dims[dim + 1 :]))
    taken = t.builder.select(tensor, dim, Term(1, (), value=t.builder.cast(index_.value, "int64")), why)
    return replace(taken, dims=dims)


def _without(tensor: Tensor, dim: int) -> tuple[tuple[int, ...], ...]:
    return (*tensor.dims[:dim], (), *tensor.dims[dim + 1 :])


@register(aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
def _same(t: Translation, node: fx.Node) -> Any:
    return t.values[node.args[0]]  # type: ignore[index]


@register(operator.getitem)
def _getitem(t: Translation, node: fx.Node) -> Any:
    several: Any = t.values[node.args[0]]  # type: ignore[index]
    return several[node.args[1]]
