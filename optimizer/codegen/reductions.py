"""Reductions of core ATen, and the norms and softmaxes made of them, as instructions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from .aten import Translation, argument, dims_of, dtype_name, meta, register, result_dtype
from .axes import Unsupported
from .build import Number, Tensor, computed_in
from .program import ReduceOp

aten = torch.ops.aten


def _reduced(
    t: Translation, op: ReduceOp, node: fx.Node, dims: Any, *, keep: bool, within: str | None = None
) -> Tensor:
    tensor, dtype = t.tensor(node.args[0]), result_dtype(node)
    held = computed_in(within or dtype)
    tensor = replace(tensor, value=t.builder.cast(tensor.value, held))
    return t.builder.reduce(op, tensor, dims_of(tensor, dims), keep=keep, dtype=dtype)


@register(aten.sum.dim_IntList, aten.sum.default)
def _sum(t: Translation, node: fx.Node) -> Tensor:
    return _reduced(t, "sum", node, argument(node, 1, "dim", None), keep=bool(argument(node, 2, "keepdim", False)))


@register(aten.amax.default, aten.amin.default)
def _extreme(t: Translation, node: fx.Node) -> Tensor:
    op: ReduceOp = "max" if node.target is aten.amax.default else "min"
    return _reduced(t, op, node, argument(node, 1, "dim", None), keep=bool(argument(node, 2, "keepdim", False)))


@register(aten.linalg_vector_norm.default)
def _vector_norm(t: Translation, node: fx.Node) -> Tensor:
    """Norms of order 1, 2 and infinity; `dtype` is what the reference computes in."""
    b, tensor, dtype = t.builder, t.tensor(node.args[0]), result_dtype(node)
    order: Any = argument(node, 1, "ord", 2)
    held, dims = computed_in(dtype), dims_of(tensor, argument(node, 2, "dim", None))
    keep = bool(argument(node, 3, "keepdim", False))
    if order not in (1, 2, math.inf):
        raise Unsupported(f"{node.target}: order {order}")
    value = b.cast(tensor.value, held)
    value = b.compute("mul", (value, value), held) if order == 2 else b.compute("abs", (value,), held)
    op: ReduceOp = "max" if order == math.inf else "sum"
    total = b.reduce(op, replace(tensor, value=value), dims, keep=keep, dtype=dtype)
    return replace(total, value=b.compute("sqrt", (total.value,), held), dtype=dtype) if order == 2 else total


@register(aten.prod.dim_int)
def _prod(t: Translation, node: fx.Node) -> Tensor:
    return _reduced(t, "prod", node, node.args[1], keep=bool(argument(node, 2, "keepdim", False)))


@register(aten.any.dim, aten.any.dims, aten.any.default, aten.all.dim, aten.all.dims, aten.all.default)
def _any_all(t: Translation, node: fx.Node) -> Tensor:
    op: ReduceOp = "any" if node.target in (aten.any.dim, aten.any.dims, aten.any.default) else "all"
    dims, keep = argument(node, 1, "dim", None), bool(argument(node, 2, "keepdim", False))
    return _reduced(t, op, node, dims, keep=keep, within="bool")


@register(aten.mean.dim, aten.mean.default)
def _mean(t: Translation, node: fx.Node) -> Tensor:
    dims, keep = argument(node, 1, "dim", None), bool(argument(node, 2, "keepdim", False))
    return _average(
        t, t.tensor(node.args[0]), dims_of(t.tensor(node.args[0]), dims), keep=keep, dtype=result_dtype(node)
    )


def _average(t: Translation, tensor: Tensor, dims: Sequence[int], *, keep: bool, dtype: str) -> Tensor:
    b, held = t.builder, computed_in(dtype)
    tensor = replace(tensor, value=b.cast(tensor.value, held))
    total = b.reduce("sum", tensor, dims, keep=keep, dtype=dtype)
    count = b.size_of([tensor.dims[d] for d in dims], held)
    return replace(total, value=b.compute("div", (total.value, count), held))


def _spread(
    t: Translation, tensor: Tensor, dims: Sequence[int], correction: Number, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """Return variance and mean of a tensor already in its computing dtype: two passes, the second about the mean."""
    b, held = t.builder, computed_in(tensor.dtype)
    mean = _average(t, tensor, dims, keep=True, dtype=tensor.dtype)
    centred = b.compute("sub", (b.cast(tensor.value, held), mean.value), held)
    squares = replace(tensor, value=b.compute("mul", (centred, centred), held))
    total = b.reduce("sum", squares, dims, keep=keep, dtype=tensor.dtype)
    count = b.size_of([tensor.dims[d] for d in dims], held)
    if correction:
        zero = b.constant(0, held)
        count = b.compute("maximum", (b.compute("sub", (count, b.constant(correction, held)), held), zero), held)
    dropped = replace(mean, dims=b.without(tensor.dims, dims, keep=keep))
    return replace(total, value=b.compute("div", (total.value, count), held)), dropped


@register(aten.var.correction, aten.var_mean.correction)
def _var(t: Translation, node: fx.Node) -> Any:
    tensor = t.tensor(node.args[0])
    dims = dims_of(tensor, argument(node, 1, "dim", None))
    correction: Any = node.kwargs.get("correction", 1)
    keep = bool(node.kwargs.get("keepdim", False))
    var, mean = _spread(t, tensor, dims, 1 if correction is None else correction, keep=keep)
    return var if node.target is aten.var.correction else (var, mean)


@register(aten._softmax.default, aten._log_softmax.default)
def _softmax(t: Translation, node: fx.Node) -> Tensor:
    b, tensor, dtype = t.builder, t.tensor(node.args[0]), result_dtype(node)
    held, dims = computed_in(dtype), dims_of(tensor, node.args[1])
    tensor = Tensor(b.cast(tensor.value, held), tensor.dims, dtype)
    peak = b.reduce("max", tensor, dims, keep=True, dtype=dtype)
    shifted = b.compute("sub", (tensor.value, peak.value), held)
    grown = b.compute("exp", (shifted,), held)
    total = b.reduce("sum", replace(tensor, value=grown), dims, keep=True, dtype=dtype)
    if node.target is aten._softmax.default:
        # One division a row: a product with the reciprocal rounds twice, within one ulp of the quotient.
        value = b.compute("mul", (grown, b.compute("reciprocal", (total.value,), held)), held)
    else:
        value = b.compute("sub", (shifted, b.compute("log", (total.value,), held)), held)
    return replace(tensor, value=value)


@register(aten.native_layer_norm.default)
def _layer_norm(t: Translation, node: fx.Node) -> tuple[Tensor, Tensor, Tensor]:
    argument, shape, weight, bias, eps = node.args
    b, x, dtype = t.builder, t.tensor(argument), dtype_name(meta(argument).dtype)
    held = computed_in(dtype)
    dims = list(range(len(x.dims) - len(shape), len(x.dims)))  # type: ignore[arg-type]
    var, mean = _spread(t, Tensor(b.cast(x.value, held), x.dims, dtype), dims, 0, keep=True)
    shift = b.compute("add", (var.value, b.operand(eps, held)), held)  # type: ignore[arg-type]
    rstd = replace(var, value=b.compute("rsqrt", (shift,), held))
    out = b.pointwise(
        "mul", [b.pointwise("sub", [x, mean], dtype, dtype, "layer_norm"), rstd], dtype, dtype, "layer_norm"
    )
    for op, affine in (("mul", weight), ("add", bias)):
        if affine is not None:
            out = b.pointwise(op, [out, t.operand(affine)], dtype, dtype, str(node.target))
    return out, mean, rstd
