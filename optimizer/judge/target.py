"""How far from the oracle an output may be, and where one is farther.

Bound by element: 4x the reference's own error, taken at the scale of the value's row, plus 1 ulp of the output dtype at
the value, plus eps(accumulator) x sqrt(terms) of its row, plus what moving the inputs by as much of themselves moves
the oracle (the error of an honest fp32 accumulation by its backward-error model, cancellation included). In norm: 2x
the reference's own error plus the same allowances. A more accurate kernel lies inside by construction.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .oracle import Oracle

_LEAST_FOR_NORM = 256
# Fewer values than this do not show the scale of their row.
_LEAST_FOR_ROW = 16


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
        row = self.relative * _row_max(_size(exact))
        bound = (row + _ulp(exact, self.reference.dtype)).expand_as(exact)
        return Target(exact.to(self.reference.dtype), exact, bound, float(bound.norm()), self.relative)


def targets(
    reference: Callable[..., tuple[Tensor, ...]], oracle: Oracle, inputs: Sequence[Tensor], generator: torch.Generator
) -> tuple[Target, ...]:
    """Return what each output must be for these inputs. The inputs are not changed, whatever the reference does."""
    outputs = reference(*inputs)
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
    error = (out.to(torch.float64) - exact).abs()
    error = torch.where(torch.isfinite(error), error, 0.0)
    shift = torch.nan_to_num((moved - exact).abs(), nan=0.0, posinf=0.0)
    row_size, row_error = _row_max(_size(exact)), _row_max(error)
    # A chain of a few roundings in the accumulator, even where the reference was exact by luck.
    chain = 2 * _accumulator_eps(out.dtype) * math.sqrt(max(terms, 4)) * row_size
    row_shift = 2 * _row_max(shift) + chain
    relative = _worst(row_error, row_size)
    own = torch.where(row_size > 0, relative * row_size, row_error)
    if error.numel():
        own = torch.minimum(own, error.max())
    ulp = _ulp(exact, out.dtype)
    bound = (4 * own + ulp + row_shift).expand_as(exact)
    norm = float(2 * error.norm() + ulp.norm() / 2 + row_shift.expand_as(exact).norm())
    # Of few values the norm is luck.
    norm = norm if error.numel() >= _LEAST_FOR_NORM else math.inf
    return Target(out.clone(), exact, bound, norm, 2 * (4 * relative + _worst(row_shift, row_size)))


def _accumulator_eps(dtype: torch.dtype) -> float:
    """Return the eps of what a kernel accumulates in: fp64 for fp64 (the oracle is no finer), else fp32."""
    return 64 * torch.finfo(torch.float64).eps if dtype == torch.float64 else torch.finfo(torch.float32).eps


def _worst(rows: Tensor, sizes: Tensor) -> float:
    relative = torch.where(sizes > 0, rows / sizes, 0.0)
    return float(relative.max()) if relative.numel() else 0.0


def _size(exact: Tensor) -> Tensor:
    return torch.where(torch.isfinite(exact), exact.abs(), 0.0)


def _ulp(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the spacing of `dtype` at each value. fp64 cannot be told from its own oracle: there it is 64 of them."""
    facts = torch.finfo(dtype)
    eps = facts.eps * (64 if dtype == torch.float64 else 1)
    least = facts.smallest_normal if dtype == torch.float64 else facts.smallest_normal * facts.eps
    size = _size(exact).clamp(min=facts.smallest_normal)
    return torch.exp2(torch.floor(torch.log2(size))).mul_(eps).clamp_(min=least)


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
    wide = out.to(torch.float64)
    finite = torch.isfinite(wide)
    rounded = torch.isfinite(target.exact.to(target.reference.dtype))
    odd = (finite != torch.isfinite(target.reference)) & (finite != rounded)
    # The same sign and kind where both are not finite: an infinity for a nan is wrong.
    odd |= ~finite & ~_same_kind(wide, target.reference.to(torch.float64)) & ~_same_kind(wide, target.exact)
    if bool(odd.any()):
        at = _place(odd, odd.to(torch.float64))
        count = f"{int(odd.sum())} of {out.numel()} values, first {list(at)}"
        return f"finite where the reference is not, or the reverse, at {count}"
    error = torch.where(finite & torch.isfinite(target.exact), (wide - target.exact).abs(), 0.0)
    wrong = ~(error <= target.bound)
    if bool(wrong.any()):
        over = torch.where(wrong, error / target.bound, 0.0)
        at = _place(wrong, over)
        worst, bound = float(error[at] if at else error), float(target.bound[at] if at else target.bound)
        return (
            f"wrong at {int(wrong.sum())} of {out.numel()} values, worst {worst:.3g} at {list(at)}, bound {bound:.3g}"
        )
    norm = float(error.norm())
    if not norm <= target.norm_bound:
        return f"error in norm {norm:.3g}, bound {target.norm_bound:.3g}, though every value is within its own"
    return None


def _same_kind(a: Tensor, b: Tensor) -> Tensor:
    return (torch.isnan(a) & torch.isnan(b)) | (a == b)


def _place(where: Tensor, weight: Tensor) -> tuple[int, ...]:
    flat = int(torch.where(where, weight, -1.0).flatten().argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), where.shape))
