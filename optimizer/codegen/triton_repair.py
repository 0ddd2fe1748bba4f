"""Repairs of Triton's interpreter, for the process that calls `repair`: it computes wrongly in five ways, each seen.

bfloat16 is kept as unsigned integers and computed with as such; it is truncated where a GPU rounds; a reduction by a
function of one's own takes minutes; the device library is empty; and loops to a bound known at run time end in an error
(Triton 3.6 with numpy 2.4).
"""

from __future__ import annotations

from typing import Any


def repair() -> None:
    """Make this process compute in bfloat16, round to it, reduce with NaN, and know the device library."""
    from triton.runtime import interpreter

    halves = _Halves(interpreter)
    halves.repair_arithmetic()
    halves.repair_reductions()
    _repair_combining(interpreter)
    _repair_library()
    _repair_bounds(interpreter)


class _Halves:
    """bfloat16 between the bits the interpreter keeps and the float32 it should compute in."""

    def __init__(self, interpreter: Any) -> None:
        import numpy as np
        import triton.language as tl

        self._np, self._tl, self._interpreter = np, tl, interpreter
        self._handle = interpreter.TensorHandle

    def _half(self, h: Any) -> bool:
        return bool(h.dtype.scalar == self._tl.bfloat16 and h.data.dtype == self._np.uint16)

    def _up(self, h: Any) -> Any:
        np = self._np
        return (h.data.astype(np.uint32) << 16).view(np.float32) if self._half(h) else h.data

    def _down(self, data: Any) -> Any:
        np = self._np
        single = np.ascontiguousarray(data, dtype=np.float32)
        bits = single.view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(single), np.uint16(0x7FC0), rounded)

    def _wide(self, h: Any) -> Any:
        return self._handle(self._up(h), self._tl.float32) if self._half(h) else h

    def _made(self, data: Any) -> Any:
        return self._handle(self._down(data), self._tl.bfloat16)

    def repair_arithmetic(self) -> None:
        builder, bf16 = self._interpreter.InterpreterBuilder, self._tl.bfloat16
        old_binary, old_unary, old_cast, old_dot = (
            getattr(builder, name) for name in ("binary_op", "unary_op", "cast_impl", "create_dot")
        )

        def binary_op(build: Any, left: Any, right: Any, op: Any) -> Any:
            if not self._half(left):
                return old_binary(build, left, right, op)
            out = op(self._up(left), self._up(right))
            return self._made(out) if out.dtype.kind == "f" else self._handle(out, bf16)

        def unary_op(build: Any, arg: Any, op: Any) -> Any:
            return self._made(op(self._up(arg))) if self._half(arg) else old_unary(build, arg, op)

        def cast_impl(build: Any, source: Any, target: Any) -> Any:
            before, after = source.dtype.scalar, target.scalar
            if after == bf16 and before != after:
                return self._made(source.data.astype(self._np.float32))
            if before == bf16 and before != after:
                return self._handle(self._up(source).astype(self._interpreter._get_np_dtype(target)), after)
            return old_cast(build, source, target)

        builder.binary_op, builder.unary_op, builder.cast_impl = binary_op, unary_op, cast_impl
        for kind in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc"):
            setattr(builder, f"create_{kind}", lambda build, source, target, *_: build.cast_impl(source, target))
        builder.create_dot = lambda build, a, b, d, *rest: old_dot(build, self._wide(a), self._wide(b), d, *rest)

    def repair_reductions(self) -> None:
        tl, scan = self._tl, self._interpreter.ReduceScanOpInterface
        old_apply = scan.apply

        def typed(t: Any, dtype: Any) -> Any:
            return tl.block_type(dtype, list(t.shape)) if t.type.is_block() else dtype

        def single(t: Any) -> Any:
            return tl.core.tensor(self._wide(t.handle), typed(t, tl.float32)) if self._half(t.handle) else t

        def apply(reduction: Any, values: Any) -> Any:
            if not isinstance(values, tuple):
                return apply(reduction, (values,))[0]
            out = old_apply(reduction, tuple(single(t) for t in values))
            return tuple(
                tl.core.tensor(self._made(o.handle.data), typed(o, tl.bfloat16)) if self._half(t.handle) else o
                for o, t in zip(out, values, strict=False)
            )

        scan.apply = apply


def _repair_combining(interpreter: Any) -> None:
    """Take the combining functions of `triton_device.py` as whole-array functions: one by one takes minutes."""
    import numpy as np

    known: dict[str, Any] = {
        "larger": np.max, "smaller": np.min, "times": np.prod, "either": np.any, "both": np.all,
    }  # fmt: skip
    operation = interpreter.ReduceOps
    old = operation.apply_impl

    def apply_impl(self: Any, values: Any) -> Any:
        name = getattr(getattr(self.combine_fn, "fn", None), "__name__", "")
        if name in known and len(values) == 1 and self.axis is not None:
            (value,) = values
            return self.to_tensor(known[name](value.handle.data, axis=self.axis, keepdims=self.keep_dims), value.dtype)
        return old(self, values)

    operation.apply_impl = apply_impl


def _repair_library() -> None:
    import numpy as np
    import triton.language as tl
    from triton.language.extra import libdevice

    def mapped(function: Any) -> Any:
        def call(*args: Any) -> Any:
            whole = [a for a in args if isinstance(a, tl.core.tensor)]
            data = function(*(a.handle.data if isinstance(a, tl.core.tensor) else a for a in args))
            kind = whole[0].handle
            return tl.core.tensor(type(kind)(data.astype(kind.data.dtype), kind.dtype), whole[0].type)

        return call

    for name, function in {
        "expm1": np.expm1, "log1p": np.log1p, "pow": np.power, "rint": np.rint, "trunc": np.trunc, "tanh": np.tanh,
    }.items():  # fmt: skip
        setattr(libdevice, name, mapped(function))


def _repair_bounds(interpreter: Any) -> None:
    """Let a tensor be the bound of a loop: numpy 2.4 refuses what Triton 3.6 does to make a number of it."""
    scope = interpreter._LangPatchScope
    old = scope.set_attr

    def set_attr(self: Any, target: Any, name: str, value: Any) -> None:
        old(self, target, name, (lambda t: int(t.handle.data.item())) if name == "__index__" else value)

    scope.set_attr = set_attr
