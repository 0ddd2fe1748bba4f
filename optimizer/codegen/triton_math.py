"""Instructions as Triton expressions, and the device functions those need."""

from __future__ import annotations

import ast
import math
import re
from functools import cache
from pathlib import Path

from .program import Compute, Constant, Reduce

HELD = {"bool": "tl.int1", "bfloat16": "tl.float32", "float16": "tl.float32"} | {
    name: f"tl.{name}" for name in ("float32", "float64", "int64", "int32", "int16", "int8", "uint8")
}
STORED = HELD | {"bfloat16": "tl.bfloat16", "float16": "tl.float16"}

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&", "or": "|", "xor": "^", "bitand": "&", "bitor": "|", "bitxor": "^",
}  # fmt: skip
FORMS = {
    "neg": "-{0}", "reciprocal": "1 / {0}", "not": "{0} == 0", "bitnot": "~{0}", "copy": "{0}",
    "where": "tl.where({0}, {1}, {2})", "abs": "tl.abs({0})", "remainder": "floor_remainder({0}, {1})",
    "maximum": "larger({0}, {1})", "minimum": "smaller({0}, {1})",
    "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})", "log2": "tl.log2({0})",
    "sqrt": "tl.sqrt({0})", "rsqrt": "tl.rsqrt({0})", "sin": "tl.sin({0})", "cos": "tl.cos({0})", "erf": "tl.erf({0})",
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "round": "nearest({0})", "trunc": "truncate({0})",
    "expm1": "expm1({0})", "log1p": "log1p({0})", "pow": "power({0}, {1})",
    "sigmoid": "sigmoid({0})", "tanh": "tanh({0})", "one_plus_tanh": "one_plus_tanh({0})",
    "one_plus_erf": "one_plus_erf({0})", "one_plus_erf_half": "one_plus_erf_half({0})",
}  # fmt: skip
DOUBLE = FORMS | {"tanh": "tanh_double({0})"}


def computed(item: Compute, names: list[str], within: str) -> str:
    """Return the expression of a pointwise instruction. within: the dtype of its operands."""
    if item.op == "cast":
        return f"{names[0]} != 0" if item.dtype == "bool" else f"{names[0]}.to({HELD[item.dtype]})"
    if item.op in INFIX:
        return f"{names[0]} {INFIX[item.op]} {names[1]}"
    if item.op == "floordiv":
        return f"floor_divide{'' if within.startswith('float') else '_int'}({names[0]}, {names[1]})"
    return (DOUBLE if within == "float64" else FORMS)[item.op].format(*names)


def literal(item: Constant) -> str:
    """Return a constant as a scalar of its dtype: a bare Python number would take part in type promotion."""
    number = item.value
    if isinstance(number, float) and not math.isfinite(number):
        return f'tl.full((), float("{number}"), {HELD[item.dtype]})'
    if item.dtype == "float32" and abs(number) > 3.4028235677973366e38:  # a limit of another dtype
        return f'tl.full((), float("{"-" if number < 0 else ""}inf"), tl.float32)'
    return f"tl.full((), {number!r}, {HELD[item.dtype]})"


def identity(op: str, dtype: str) -> str:
    """Return what a masked lane holds for a reduction, as a bare number."""
    if op in ("any", "all") or (op in ("max", "min") and dtype == "bool"):
        return str(op in ("all", "min"))
    if op in ("max", "min") and dtype.startswith("float"):
        return f'float("{"-" if op == "max" else ""}inf")'
    if op in ("max", "min"):
        bits = int(dtype.removeprefix("u").removeprefix("int"))
        low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return str(low if op == "max" else high)
    return "1" if op == "prod" else "0"


_JOIN = {"prod": "times", "max": "larger", "min": "smaller", "any": "either", "all": "both"}


def reduced(item: Reduce, name: str, *, keep: bool = True) -> str:
    """Return the expression that reduces a tile over its axis 1. keep: with size 1."""
    if item.op == "sum":
        return f"tl.sum({name}, axis=1, keep_dims={keep})"
    return f"tl.reduce({name}, 1, {_JOIN[item.op]}, keep_dims={keep})"


def joined(item: Reduce, left: str, right: str) -> str:
    """Return the expression that combines two partial results."""
    return f"{left} + {right}" if item.op == "sum" else f"{_JOIN[item.op]}({left}, {right})"


@cache
def _functions() -> dict[str, str]:
    path = Path(__file__).parent / "triton_device.py"
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    return {
        node.name: "\n".join(lines[node.lineno - 2 : node.end_lineno])
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }


def device_functions(body: str) -> str:
    """Return the source of every function of `triton_device.py` that `body` calls."""
    called = set(re.findall(r"(?<![\w.])\w+", body))
    used = [source for name, source in _functions().items() if name in called]
    head = "from triton.language.extra import libdevice\n\n\n" if any("libdevice" in source for source in used) else ""
    return head + "\n\n\n".join(used)
