"""Pointwise ops, casts and constants of core ATen as instructions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from .aten import Handler, Translation, dtype_name, meta, register, result_dtype
from .axes import Unsupported
from .build import Operand, Tensor, computed_in
from .program import Load

aten = torch.ops.aten


def _arithmetic(op: str) -> Handler:
    def handle(t: Translation, node: fx.Node) -> Tensor:
        dtype = result_dtype(node)
        return t.builder.pointwise(op, [t.operand(a) for a in node.args], dtype, dtype, str(node.target))

    return handle


def _comparison(op: str) -> Handler:
    def handle(t: Translation, node: fx.Node) -> Tensor:
        left, right = node.args
        within = dtype_name(torch.result_type(meta(left), meta(right)))
        return t.builder.pointwise(op, [t.operand(left), t.operand(right)], within, "bool", str(node.target))

    return handle


def _logical(op: str) -> Handler:
    def handle(t: Translation, node: fx.Node) -> Tensor:
        return t.builder.pointwise(op, [t.operand(a) for a in node.args], "bool", "bool", str(node.target))

    return handle


for _name, _ops in {
    "neg": [aten.neg.default],
    "abs": [aten.abs.default],
    "exp": [aten.exp.default],
    "exp2": [aten.exp2.default],
    "expm1": [aten.expm1.default],
    "log": [aten.log.default],
    "log2": [aten.log2.default],
    "log1p": [aten.log1p.default],
    "sqrt": [aten.sqrt.default],
    "rsqrt": [aten.rsqrt.default],
    "reciprocal": [aten.reciprocal.default],
    "tanh": [aten.tanh.default],
    "erf": [aten.erf.default],
    "sigmoid": [aten.sigmoid.default],
    "sin": [aten.sin.default],
    "cos": [aten.cos.default],
    "floor": [aten.floor.default],
    "ceil": [aten.ceil.default],
    "round": [aten.round.default],
    "trunc": [aten.trunc.default],
    "mul": [aten.mul.Tensor, aten.mul.Scalar],
    "div": [aten.div.Tensor, aten.div.Scalar],
    "maximum": [aten.maximum.default],
    "minimum": [aten.minimum.default],
    "remainder": [aten.remainder.Tensor, aten.remainder.Scalar],
    "bitand": [aten.bitwise_and.Tensor, aten.bitwise_and.Scalar],
    "bitor": [aten.bitwise_or.Tensor, aten.bitwise_or.Scalar],
    "bitxor": [aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar],
}.items():
    register(*_ops)(_arithmetic(_name))

for _name, _ops in {
    "eq": [aten.eq.Tensor, aten.eq.Scalar],
    "ne": [aten.ne.Tensor, aten.ne.Scalar],
    "lt": [aten.lt.Tensor, aten.lt.Scalar],
    "le": [aten.le.Tensor, aten.le.Scalar],
    "gt": [aten.gt.Tensor, aten.gt.Scalar],
    "ge": [aten.ge.Tensor, aten.ge.Scalar],
}.items():
    register(*_ops)(_comparison(_name))

for _name, _ops in {
    "and": [aten.logical_and.default],
    "or": [aten.logical_or.default],
    "xor": [aten.logical_xor.default],
    "not": [aten.logical_not.default],
}.items():
    register(*_ops)(_logical(_name))


@register(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _add(t: Translation, node: fx.Node) -> Tensor:
    return _added(t, node, "add" if node.target in (aten.add.Tensor, aten.add.Scalar) else "sub")


def _added(t: Translation, node: fx.Node, op: str) -> Tensor:
    dtype, why = result_dtype(node), str(node.target)
    left, right = (t.operand(a) for a in node.args[:2])
    alpha: Any = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
    if alpha != 1:
        right = t.builder.pointwise("mul", [right, alpha], dtype, dtype, why)
    return t.builder.pointwise(op, [left, right], dtype, dtype, why)


@register(aten.add_.Scalar, aten.add_.Tensor, aten.mul_.Scalar, aten.mul_.Tensor)
def _in_place(t: Translation, node: fx.Node) -> Tensor:
    """Decompositions of torch change what they have just made; where nobody else sees that, it is the pure op."""
    (made, *_) = node.args
    if not isinstance(made, fx.Node) or set(made.users) != {node} or not _is_new(made):
        raise Unsupported(f"{node.target}: changes a tensor that something else reads")
    if node.target in (aten.add_.Scalar, aten.add_.Tensor):
        return _added(t, node, "add")
    return t.builder.pointwise("mul", [t.operand(a) for a in node.args], result_dtype(node), result_dtype(node), "mul_")


def _is_new(node: fx.Node) -> bool:
    """Whether a tensor has memory of its own: it is no argument of the region and no view."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    aliases = [r.alias_info for r in node.target._schema.returns if r.alias_info is not None]
    return all(a.is_write for a in aliases)


@register(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(t: Translation, node: fx.Node) -> Tensor:
    dtype = result_dtype(node)
    return t.builder.pointwise(
        "sub", [t.operand(node.args[1]), t.operand(node.args[0])], dtype, dtype, str(node.target)
    )


@register(aten.div.Tensor_mode)
def _div_mode(t: Translation, node: fx.Node) -> Tensor:
    dtype, mode = result_dtype(node), node.kwargs["rounding_mode"]
    if mode == "trunc" or (mode is None and not dtype.startswith(("float", "bfloat"))):
        raise Unsupported(f"{node.target}: rounding mode {mode}")
    op = "div" if mode is None else "floordiv"
    return t.builder.pointwise(op, [t.operand(a) for a in node.args], dtype, dtype, str(node.target))


@register(aten.bitwise_not.default)
def _bitnot(t: Translation, node: fx.Node) -> Tensor:
    dtype = result_dtype(node)
    op = "not" if dtype == "bool" else "bitnot"
    return t.builder.pointwise(op, [t.operand(node.args[0])], dtype, dtype, str(node.target))


@register(aten.isnan.default, aten.isinf.default)
def _is(t: Translation, node: fx.Node) -> Tensor:
    (argument,) = node.args
    tensor, within = t.tensor(argument), dtype_name(meta(argument).dtype)
    if node.target is aten.isnan.default:
        return t.builder.pointwise("ne", [tensor, tensor], within, "bool", str(node.target))
    size = t.builder.pointwise("abs", [tensor], within, within, str(node.target))
    return t.builder.pointwise("eq", [size, math.inf], within, "bool", str(node.target))


@register(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(t: Translation, node: fx.Node) -> Tensor:
    dtype = result_dtype(node)
    test, left, right = (t.operand(a) for a in node.args)
    return _choose(t, test, left, right, dtype, str(node.target))


def _choose(t: Translation, test: Operand, left: Operand, right: Operand, dtype: str, why: str) -> Tensor:
    b, held = t.builder, computed_in(dtype)
    (test, left, right), dims = b.align((test, left, right), why)
    value = b.compute("where", (b.operand(test, "bool"), b.operand(left, held), b.operand(right, held)), held)
    return Tensor(value, dims, dtype)


@register(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(t: Translation, node: fx.Node) -> Tensor:
    tensor, mask, value = (t.operand(a) for a in node.args)
    return _choose(t, mask, value, tensor, result_dtype(node), str(node.target))


@register(aten.clamp.default, aten.clamp.Tensor, aten.hardtanh.default, aten.clamp_min.default, aten.clamp_max.default)
def _clamp(t: Translation, node: fx.Node) -> Tensor:
    dtype, why = result_dtype(node), str(node.target)
    out, *rest = node.args
    low, high = [*rest, None, None][:2]
    if node.target is aten.clamp_max.default:
        low, high = None, low
    if node.target is aten.hardtanh.default:
        low, high = (rest + [-1.0, 1.0][len(rest) :])[:2]
    low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
    value = t.operand(out)
    if low is not None:
        value = t.builder.pointwise("maximum", [value, t.operand(low)], dtype, dtype, why)
    if high is not None:
        value = t.builder.pointwise("minimum", [value, t.operand(high)], dtype, dtype, why)
    return t.tensor(out) if not isinstance(value, Tensor) else value


@register(aten.relu.default)
def _relu(t: Translation, node: fx.Node) -> Tensor:
    dtype = result_dtype(node)
    return t.builder.pointwise("maximum", [t.operand(node.args[0]), 0], dtype, dtype, str(node.target))


@register(aten.silu.default)
def _silu(t: Translation, node: fx.Node) -> Tensor:
    dtype, why, x = result_dtype(node), str(node.target), t.operand(node.args[0])
    return t.builder.pointwise("mul", [x, t.builder.pointwise("sigmoid", [x], dtype, dtype, why)], dtype, dtype, why)


@register(aten.gelu.default)
def _gelu(t: Translation, node: fx.Node) -> Tensor:
    dtype, why, x = result_dtype(node), str(node.target), t.operand(node.args[0])

    def do(op: str, *operands: Operand) -> Tensor:
        return t.builder.pointwise(op, operands, dtype, dtype, why)

    if node.kwargs.get("approximate", "none") == "tanh":
        cube = do("mul", do("mul", x, x), x)
        inner = do("mul", do("add", x, do("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
        return do("mul", do("mul", x, 0.5), do("add", do("tanh", inner), 1.0))
    return do("mul", do("mul", x, 0.5), do("add", do("erf", do("mul", x, math.sqrt(0.5))), 1.0))


@register(aten.pow.Tensor_Scalar)
def _pow(t: Translation, node: fx.Node) -> Tensor:
    dtype, why, base = result_dtype(node), str(node.target), t.operand(node.args[0])
    exponent: Any = node.args[1]

    def do(op: str, *operands: Operand) -> Tensor:
        return t.builder.pointwise(op, operands, dtype, dtype, why)

    roots = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if exponent in roots:
        return do(roots[exponent], base)
    if exponent in (2, 3, 4):
        square = do("mul", base, base)
        return square if exponent == 2 else do("mul", square, base if exponent == 3 else square)
    return do("pow", base, exponent)


@register(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _pow_tensor(t: Translation, node: fx.Node) -> Tensor:
    dtype = result_dtype(node)
    if not dtype.startswith(("float", "bfloat")):
        raise Unsupported(f"{node.target}: powers of integers")
    return t.builder.pointwise("pow", [t.operand(a) for a in node.args], dtype, dtype, str(node.target))


@register(aten._to_copy.default, aten.clone.default)
def _copy(t: Translation, node: fx.Node) -> Tensor:
    tensor, dtype = t.tensor(node.args[0]), result_dtype(node)
    value = t.builder.cast(tensor.value, computed_in(dtype))
    if isinstance(t.builder.code[value], Load):
        value = t.builder.compute("copy", (value,), computed_in(dtype))
    return Tensor(value, tensor.dims, dtype)


@register(aten.scalar_tensor.default)
def _scalar(t: Translation, node: fx.Node) -> Tensor:
    return _filled(t, node, node.args[0])


@register(aten.full.default)
def _full(t: Translation, node: fx.Node) -> Tensor:
    return _filled(t, node, node.args[1])


@register(aten.full_like.default)
def _full_like(t: Translation, node: fx.Node) -> Tensor:
    return replace(_filled(t, node, node.args[1]), dims=t.tensor(node.args[0]).dims)


def _filled(t: Translation, node: fx.Node, number: Any) -> Tensor:
    if not isinstance(number, bool | int | float):
        raise Unsupported(f"{node.target}: filled with {number}, not a number")
    dtype = result_dtype(node)
    dims = tuple(() if s == 1 else (t.builder.axes.new(s),) for s in node.meta["val"].shape)
    return Tensor(t.builder.constant(number, dtype), dims, dtype)


@register(aten.arange.start_step, aten.arange.default, aten.arange.start)
def _arange(t: Translation, node: fx.Node) -> Tensor:
    bounds: list[Any] = list(node.args)
    start = bounds[0] if len(bounds) > 1 else 0
    step = bounds[2] if len(bounds) > 2 else 1
    if not isinstance(start, int) or not isinstance(step, int):
        raise Unsupported(f"{node.target}: steps that are not integers")
    return t.builder.arange(node.meta["val"].numel(), start, step, result_dtype(node))
