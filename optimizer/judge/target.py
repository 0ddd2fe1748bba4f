"""How far from the oracle an output may be, and where one is farther.

Bound by element: 4x the reference's own error, taken at the scale of the value's row, plus 1 ulp of the output dtype at
the value, plus eps(accumulator) x sqrt(terms) of its row, plus what moving the inputs by as much of themselves moves
the oracle (the error of an honest fp32 accumulation by its backward-error model, cancellation included). In norm: 2x
the reference's own error plus the same allowances. A more accurate kernel lies inside by construction.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .oracle import Oracle

_LEAST_FOR_NORM = 256
# Values of an output that are compared at once: each step takes several fp64 tensors of them.
_BLOCK = 1 << 24
# Fewer values than this do not show the scale of their row.
_LEAST_FOR_ROW = 16
_EXPONENT = 0x7FF0_0000_0000_0000


@dataclass(frozen=True)
class Target:
    """One output as it must be. exact: the oracle (fp64), None for integers and booleans, which equal `reference`.

    relative: twice the bound by element as a part of its row's largest value, for other values at the same shape.
    """

    reference: Tensor
    exact: Tensor | None
    bound: Tensor | None
    norm_bound: float
    relative: float = 0.0

    def at(self, exact: Tensor) -> Target:
        """Return the target for other values of the same shape and kind, by the relative bound found for these."""
        size = _size(exact)
        row = self.relative * _row_max(size)
        bound = _ulp(size, self.reference.dtype).add_(row)
        return Target(exact.to(self.reference.dtype), exact, bound, float(bound.norm()), self.relative)


def targets(
    outputs: Sequence[Tensor], oracle: Oracle, inputs: Sequence[Tensor], generator: torch.Generator
) -> tuple[Target, ...]:
    """Return what each output must be for these inputs. outputs: the reference's own."""
    exacts = oracle(inputs)
    moved = oracle(inputs, functools.partial(_moved, terms=oracle.terms, generator=generator))
    return tuple(_target(o, exact, other, oracle.terms) for o, exact, other in zip(outputs, exacts, moved, strict=True))


def _moved(given: Tensor, terms: int, generator: torch.Generator) -> Tensor:
    """Return an input, or a piece of it, each value moved by its part of eps(fp32) x sqrt(terms), most of them up."""
    if not given.is_floating_point():
        return given
    by = torch.rand(given.shape, generator=generator, device=given.device).mul_(1.5).sub_(0.5).to(torch.float64)
    wide = given.to(torch.float64)
    step = wide * by.mul_(_accumulator_eps(given.dtype) * math.sqrt(terms))
    # Infinite and huge values are masks: moving them would make nan of a difference that means nothing.
    return torch.where(wide.abs() < 1e30, wide + step, wide)


def _target(out: Tensor, exact: Tensor, moved: Tensor, terms: int) -> Target:
    if not out.is_floating_point():
        return Target(out.clone(), None, None, 0.0)
    facts = [_facts(out[at], exact[at], moved[at]) for _, at in _blocks(exact)]
    row_size, row_error, shift = (
        (torch.cat(rows) for rows in zip(*(f.rows for f in facts), strict=True)) if len(facts) > 1 else facts[0].rows
    )
    # A chain of a few roundings in the accumulator, even where the reference was exact by luck.
    chain = 2 * _accumulator_eps(out.dtype) * math.sqrt(max(terms, 4)) * row_size
    row_shift = 2 * shift + chain
    relative = _worst(row_error, row_size)
    own = torch.where(row_size > 0, relative * row_size, row_error).clamp(max=max(f.worst for f in facts))
    bound = torch.empty_like(exact)
    for _, at in _blocks(exact):
        bound[at] = 4 * own[at] + _ulp(_size(exact[at]), out.dtype) + row_shift[at]
    error, ulp = (math.sqrt(sum(squares)) for squares in zip(*(f.squares for f in facts), strict=True))
    spread = float(row_shift.norm()) * math.sqrt(exact.numel() / max(row_shift.numel(), 1))
    # Of few values the norm is luck.
    norm = 2 * error + ulp / 2 + spread if exact.numel() >= _LEAST_FOR_NORM else math.inf
    return Target(out.clone(), exact, bound, norm, 2 * (4 * relative + _worst(row_shift, row_size)))


@dataclass(frozen=True)
class _Facts:
    """What the bounds of a block are made from. rows: largest value, error and shift of each; worst: error of all.

    squares: the sums of squares of the errors and of the ulps.
    """

    rows: tuple[Tensor, Tensor, Tensor]
    worst: float
    squares: tuple[float, float]


def _facts(out: Tensor, exact: Tensor, moved: Tensor) -> _Facts:
    error = (out.to(torch.float64) - exact).abs()
    error = torch.where(torch.isfinite(error), error, 0.0)
    shift = torch.nan_to_num((moved - exact).abs(), nan=0.0, posinf=0.0)
    size = _size(exact)
    rows = _row_max(size), _row_max(error), _row_max(shift)
    squares = float(error.norm()) ** 2, float(_ulp(size, out.dtype).norm()) ** 2
    return _Facts(rows, float(error.max()) if error.numel() else 0.0, squares)


def _blocks(values: Tensor) -> list[tuple[int, Any]]:
    """Return where pieces of the first dim begin and how to index them, so that no step needs much memory at once."""
    if values.numel() <= _BLOCK or values.dim() < 2 or math.prod(values.shape[1:]) < _LEAST_FOR_ROW:
        return [(0, ...)]
    step = max(1, _BLOCK * values.shape[0] // values.numel())
    return [(start, slice(start, start + step)) for start in range(0, values.shape[0], step)]


def _accumulator_eps(dtype: torch.dtype) -> float:
    """Return the eps of what a kernel accumulates in: fp64 for fp64 (the oracle is no finer), else fp32."""
    return 64 * torch.finfo(torch.float64).eps if dtype == torch.float64 else torch.finfo(torch.float32).eps


def _worst(rows: Tensor, sizes: Tensor) -> float:
    relative = torch.where(sizes > 0, rows / sizes, 0.0)
    return float(relative.max()) if relative.numel() else 0.0


def _size(exact: Tensor) -> Tensor:
    return exact.abs().nan_to_num_(nan=0.0, posinf=0.0)


def _ulp(size: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the spacing of `dtype` at these sizes. fp64 cannot be told from its own oracle: there it is 64 of them."""
    facts = torch.finfo(dtype)
    eps = facts.eps * (64 if dtype == torch.float64 else 1)
    least = facts.smallest_normal if dtype == torch.float64 else facts.smallest_normal * facts.eps
    size = size.clamp(min=facts.smallest_normal)
    # The power of two below a number is what is left of it without its mantissa.
    return size.view(torch.int64).bitwise_and_(_EXPONENT).view(torch.float64).mul_(eps).clamp_(min=least)


def _row_max(values: Tensor) -> Tensor:
    """Return the largest value of each row, a row being the last dims that together hold enough values.

    A row of one value may have come out near zero by cancellation: that says nothing of the size of what was added.
    """
    if values.dim() == 0 or values.numel() == 0:
        return values
    dims = [values.dim() - 1]
    while dims[-1] > 0 and math.prod(values.shape[d] for d in dims) < _LEAST_FOR_ROW:
        dims.append(dims[-1] - 1)
    return values.amax(dims, keepdim=True)


def misfit(got: Sequence[Tensor], wanted: Sequence[Target]) -> str | None:
    """Return None when all outputs are right, else one line with where and by how much the first wrong one is off."""
    for number, (out, target) in enumerate(zip(got, wanted, strict=True)):
        problem = _misfit(out, target)
        if problem:
            return problem if len(wanted) == 1 else f"output {number}: {problem}"
    return None


def _misfit(out: Tensor, target: Target) -> str | None:
    if target.exact is None or target.bound is None:
        wrong = out != target.reference
        if not bool(wrong.any()):
            return None
        at = _place(wrong, wrong.to(torch.float64))
        return (
            f"wrong at {int(wrong.sum())} of {out.numel()} values, first at {at}; integers and booleans must be exact"
        )
    parts = [_compared(out[at], target, start, at) for start, at in _blocks(target.exact)]
    odds, wrongs = sum(p.odd for p in parts), sum(p.wrong for p in parts)
    if odds:
        first = next(p.odd_at for p in parts if p.odd)
        return f"finite where the reference is not, or the reverse, at {odds} of {out.numel()} values, first {first}"
    if wrongs:
        worst = max(parts, key=lambda p: p.over)
        return (
            f"wrong at {wrongs} of {out.numel()} values, worst {worst.error:.3g} at {worst.at}, bound {worst.bound:.3g}"
        )
    norm = math.sqrt(sum(p.square for p in parts))
    if not norm <= target.norm_bound:
        return f"error in norm {norm:.3g}, bound {target.norm_bound:.3g}, though every value is within its own"
    return None


@dataclass(frozen=True)
class _Compared:
    """A block of an output beside its target. odd: values finite where they must not be, or the reverse.

    over: how many times its bound the worst wrong value is off, 0 where none is wrong; error, bound, at: of that value.
    square: the sum of squares of the errors.
    """

    odd: int
    odd_at: list[int]
    wrong: int
    over: float
    error: float
    bound: float
    at: list[int]
    square: float


def _compared(out: Tensor, target: Target, start: int, where: Any) -> _Compared:
    assert target.exact is not None
    assert target.bound is not None
    exact, bound, reference = target.exact[where], target.bound[where], target.reference[where]
    wide = out.to(torch.float64)
    if out.numel():  # nearly always all is right, which is seen at once
        error = (wide - exact).abs_()
        inside = bool((error <= bound).all()) and math.isfinite(float(error.max()))
        if inside and float(exact.abs().max()) < torch.finfo(reference.dtype).max:
            return _Compared(0, [], 0, 0.0, 0.0, 0.0, [], float(error.norm()) ** 2)
    finite = torch.isfinite(wide)
    rounded = torch.isfinite(exact.to(reference.dtype))
    odd = (finite != torch.isfinite(reference)) & (finite != rounded)
    # The same sign and kind where both are not finite: an infinity for a nan is wrong.
    odd |= ~finite & ~_same_kind(wide, reference.to(torch.float64)) & ~_same_kind(wide, exact)
    error = torch.where(finite & torch.isfinite(exact), (wide - exact).abs(), 0.0)
    wrong = ~(error <= bound)
    odds, wrongs = int(odd.sum()), int(wrong.sum())
    odd_at = _place(odd, odd.to(torch.float64)) if odds else ()
    over = torch.where(wrong, torch.nan_to_num(error / bound, nan=math.inf), 0.0) if wrongs else error
    at = _place(wrong, over) if wrongs else ()
    return _Compared(
        odd=odds,
        odd_at=_moved_by(start, odd_at),
        wrong=wrongs,
        over=float(over[at]) if wrongs else 0.0,
        error=float(error[at]) if wrongs else 0.0,
        bound=float(bound[at]) if wrongs else 0.0,
        at=_moved_by(start, at),
        square=float(error.norm()) ** 2,
    )


def _moved_by(start: int, at: tuple[int, ...]) -> list[int]:
    return [at[0] + start, *at[1:]] if at else []


def _same_kind(a: Tensor, b: Tensor) -> Tensor:
    return (torch.isnan(a) & torch.isnan(b)) | (a == b)


def _place(where: Tensor, weight: Tensor) -> tuple[int, ...]:
    flat = int(torch.where(where, weight, -1.0).flatten().argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), where.shape))
