"""Run Triton candidates without a GPU: Triton's interpreter in a child process, repaired where it computes wrongly.

The interpreter keeps bfloat16 as unsigned integers and does arithmetic on those, truncates where a GPU rounds, has no
device library, and reads out of bounds without a word or dies of it. It finds wrong logic on small shapes; it cannot
show the absence of races, and its times mean nothing.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from .child import Child, Died, Message, answer_requests


class Misbehaved(Exception):
    """The candidate raised, returned no tensors, or took the interpreter down; the message says which."""


class Interpreter:
    """Interprets one candidate after another in a child."""

    def __init__(self) -> None:
        self._child = Child(__name__, {"TRITON_INTERPRET": "1"})

    def run(self, source: str, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return what the candidate's `kernel` makes of CPU tensors; raise Misbehaved where it makes nothing."""
        try:
            answer = self._child.ask({"source": source, "inputs": list(inputs)})
        except Died as died:
            raise Misbehaved(f"{died}, as after a wild access") from None
        if "error" in answer:
            raise Misbehaved(answer["error"])
        return tuple(answer["outputs"])

    def close(self) -> None:
        self._child.close()


def serve() -> None:
    """Answer with the outputs of each candidate, or with what it raised."""
    repair()
    loaded: dict[str, Callable[..., Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        answer_requests(lambda request: _answer(request, loaded, Path(folder)))


def _answer(request: Message, loaded: dict[str, Callable[..., Any]], folder: Path) -> Message:
    source = request["source"]
    try:
        if source not in loaded:
            loaded[source] = _load(source, folder / f"candidate_{len(loaded)}.py")
        result = loaded[source](*request["inputs"])
        return {"outputs": [result] if isinstance(result, Tensor) else list(result)}
    except Exception as error:  # the candidate's own: whatever it raises is the answer
        lines = str(error).strip().splitlines()
        return {"error": f"{type(error).__name__}: {lines[-1] if lines else ''}"}


def _load(source: str, path: Path) -> Callable[..., Any]:
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel: Callable[..., Any] = module.kernel
    return kernel


def repair() -> None:
    """Make this process compute in bfloat16, round to it, reduce with NaN, and know the device library."""
    from triton.runtime import interpreter

    _repair_bfloat16(interpreter)
    _repair_reductions(interpreter)
    _repair_library()
    _repair_bounds(interpreter)


def _repair_bfloat16(interpreter: Any) -> None:
    import numpy as np
    import triton.language as tl

    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    old_binary, old_unary, old_cast, old_dot = (
        getattr(builder, name) for name in ("binary_op", "unary_op", "cast_impl", "create_dot")
    )

    def half(h: Any) -> bool:
        return bool(h.dtype.scalar == tl.bfloat16 and h.data.dtype == np.uint16)

    def up(h: Any) -> Any:
        return (h.data.astype(np.uint32) << 16).view(np.float32) if half(h) else h.data

    def down(data: Any) -> Any:
        single = np.ascontiguousarray(data, dtype=np.float32)
        bits = single.view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(single), np.uint16(0x7FC0), rounded)

    def wide(h: Any) -> Any:
        return handle(up(h), tl.float32) if half(h) else h

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        if not half(left):
            return old_binary(self, left, right, op)
        out = op(up(left), up(right))
        return handle(down(out) if out.dtype.kind == "f" else out, tl.bfloat16)

    def unary_op(self: Any, arg: Any, op: Any) -> Any:
        return handle(down(op(up(arg))), tl.bfloat16) if half(arg) else old_unary(self, arg, op)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        before, after = source.dtype.scalar, target.scalar
        if after == tl.bfloat16 and before != after:
            return handle(down(source.data.astype(np.float32)), after)
        if before == tl.bfloat16 and before != after:
            return handle(up(source).astype(interpreter._get_np_dtype(target)), after)
        return old_cast(self, source, target)

    builder.binary_op, builder.unary_op, builder.cast_impl = binary_op, unary_op, cast_impl
    for kind in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc"):
        setattr(builder, f"create_{kind}", lambda self, source, target, *_: self.cast_impl(source, target))
    builder.create_dot = lambda self, a, b, d, *rest: old_dot(self, wide(a), wide(b), d, *rest)

    scan = interpreter.ReduceScanOpInterface
    old_apply = scan.apply

    def typed(t: Any, dtype: Any) -> Any:
        return tl.block_type(dtype, list(t.shape)) if t.type.is_block() else dtype

    def apply(self: Any, values: Any) -> Any:
        if not isinstance(values, tuple):
            return apply(self, (values,))[0]
        was = [half(t.handle) for t in values]
        singles = tuple(
            tl.core.tensor(wide(t.handle), typed(t, tl.float32)) if w else t for t, w in zip(values, was, strict=True)
        )
        out = old_apply(self, singles)
        return tuple(
            tl.core.tensor(handle(down(o.handle.data), tl.bfloat16), typed(o, tl.bfloat16)) if w else o
            for o, w in zip(out, was, strict=False)
        )

    scan.apply = apply


def _repair_reductions(interpreter: Any) -> None:
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
