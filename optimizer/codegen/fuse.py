"""Replace pairs of pointwise instructions by one function that is cheaper or loses fewer digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .program import Compute, Constant, Instruction


def one_plus(code: Sequence[Instruction], functions: Mapping[str, str]) -> list[Instruction]:
    """Return the code with 1 + f(x) in float32 written as functions["f"] of x: near f(x) = -1 the sum would cancel."""
    out = list(code)
    for value, item in enumerate(out):
        if not isinstance(item, Compute) or item.op != "add" or item.dtype != "float32":
            continue
        for one, other in (item.args, item.args[::-1]):
            left, right = out[one], out[other]
            if isinstance(left, Constant) and left.value == 1 and isinstance(right, Compute) and right.op in functions:
                out[value] = replace(item, op=functions[right.op], args=right.args)
    return out
