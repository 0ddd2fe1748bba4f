"""Make verification inputs out of recorded calls: another batch, other lengths, padding on either side.

Nothing is known about the model: sizes that inputs share are shrunk together, and a variant stands only if the eager
model accepts it. Sizes grow only in the batch, by repeating rows, so that no index leaves its range.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from ..models.workload import Call
from .output_tree import flatten

Accepts = Callable[[Call], bool]
Axis = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Resized:
    """A wish: the dims in `axis`, (position of a tensor, dim) each, brought to `size`."""

    name: str
    axis: Axis
    size: int


def fresh(call: Call) -> Call:
    """Return the same call with copies of everything, aliasing among inputs kept: a model may write into them."""
    memo: dict[int, Any] = {}
    for leaf in flatten((call.args, dict(call.kwargs))):
        if leaf.tensor is not None and leaf.tensor.grad_fn is not None:
            memo[id(leaf.tensor)] = leaf.tensor.detach().clone().requires_grad_()  # deepcopy refuses non-leaf tensors
    args, kwargs = copy.deepcopy((call.args, dict(call.kwargs)), memo)
    return Call(args, kwargs, call.weight, call.name)


def variants(model: nn.Module, call: Call, accepts: Accepts) -> Iterator[Call]:
    """Yield the recorded call and what derives from it; `accepts` (eager, on a fresh copy) is asked once about each."""
    tensors = _tensors(call)
    if accepts(call):
        yield call
    yield from _accepted(call, (_other_batch(tensors),), accepts)
    for axis in _length_axes(tensors):
        first, *rest = _lengths(axis, tensors)
        odd = list(_accepted(call, (first,), accepts))
        yield from odd
        if odd:  # the first axis eager lets shrink is what carries tokens or frames
            yield from _accepted(call, rest, accepts)
            break
    yield from (padded for padded in _padded(model, call) if accepts(padded))


def _accepted(call: Call, wishes: Iterable[Resized | None], accepts: Accepts) -> Iterator[Call]:
    for wish in wishes:
        made = _resize(call, wish) if wish else None
        if made and accepts(made):
            yield made


def _tensors(call: Call) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, found.append, (call.args, dict(call.kwargs)))
    return found


def _other_batch(tensors: list[torch.Tensor]) -> Resized | None:
    sizes = [t.shape[0] for t in tensors if t.ndim]
    if not sizes:
        return None
    axis = tuple((i, 0) for i, t in enumerate(tensors) if t.ndim and t.shape[0] == sizes[0])
    size = sizes[0] // 2 if sizes[0] > 1 else 2
    return Resized(f"batch {size}", axis, size)


def _lengths(axis: Axis, tensors: list[torch.Tensor]) -> list[Resized]:
    """Return the lengths to try along `axis`: odd, half and one, without repeats."""
    tensor, dim = axis[0]
    size = tensors[tensor].shape[dim]
    odd = size - 1 if size % 2 == 0 else size - 2
    sizes = dict.fromkeys((odd, size // 2, 1))
    return [Resized(f"length {n}", axis, n) for n in sizes]


def _length_axes(tensors: list[torch.Tensor]) -> list[Axis]:
    """Return axes worth a try, likeliest first: shared sizes, index-like inputs before real-valued ones."""
    dims = [(i, d) for i, t in enumerate(tensors) for d in range(1, t.ndim) if t.shape[d] > 2]
    dims.sort(key=lambda place: (tensors[place[0]].is_floating_point(), place))
    axes: list[Axis] = []
    for i, d in dims:
        together = tuple((j, e) for j, e in dims if tensors[j].shape[e] == tensors[i].shape[d])
        axes += [axis for axis in (together, ((i, d),)) if axis not in axes]
    return axes


def _resize(call: Call, wish: Resized) -> Call | None:
    """Return `call` with the wished sizes, None when there is no such size."""
    wanted: dict[int, list[int]] = {}
    for position, dim in wish.axis:
        wanted.setdefault(position, []).append(dim)
    position = -1

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal position
        position += 1
        for dim in wanted.get(position, ()):
            tensor = _along(tensor, dim, wish.size)
        return tensor.detach().clone() if position in wanted else tensor

    if wish.size < 1 or not wish.axis:
        return None
    args, kwargs = tree_map_only(torch.Tensor, resized, (call.args, dict(call.kwargs)))
    return Call(args, kwargs, call.weight, f"{call.name}: {wish.name}")


def _along(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    have = tensor.shape[dim]
    if size <= have:
        return tensor.narrow(dim, 0, size)
    return torch.cat([tensor] * -(-size // have), dim).narrow(dim, 0, size)


def _padded(model: nn.Module, call: Call) -> Iterator[Call]:
    """Yield the call with its attention mask zeroed on the right, then on the left; each row by another length."""
    found = _attention_mask(model, call)
    if found is None or found.ndim != 2 or found.shape[1] < 2:
        return
    rows, length = found.shape
    for side in ("right", "left"):
        mask = found.clone()
        for row in range(rows):
            # The first of several rows stays whole, the last keeps a quarter.
            pad = min(length - 1, (3 * length * (row if rows > 1 else 1)) // (4 * max(rows - 1, 1)))
            if pad:
                mask[row, length - pad :] = 0 if side == "right" else mask[row, length - pad :]
                mask[row, :pad] = 0 if side == "left" else mask[row, :pad]
        args, kwargs = tree_map_only(torch.Tensor, _replacing(found, mask), (call.args, dict(call.kwargs)))
        yield Call(args, kwargs, call.weight, f"{call.name}: padded {side}")


def _replacing(old: torch.Tensor, new: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: new if tensor is old else tensor


def _attention_mask(model: nn.Module, call: Call) -> torch.Tensor | None:
    """Return the argument `attention_mask` (1 keeps, 0 is padding, as tokenizers make it), None if there is none."""
    given: Mapping[str, Any] = call.kwargs
    if call.args:
        try:
            given = {**inspect.signature(model.forward).bind_partial(*call.args).arguments, **call.kwargs}
        except (TypeError, ValueError):
            return None  # a forward whose signature does not say which argument is which
    mask = given.get("attention_mask")
    return mask if isinstance(mask, torch.Tensor) else None
