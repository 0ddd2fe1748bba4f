"""How far from the oracle an output may be, and where one is farther.

Bound by element: 4x the reference's own error, taken at the scale of the value's row, plus 1 ulp of the output dtype at
the value, plus what moving the inputs by eps(fp32) x sqrt(terms) of themselves moves the oracle (the error of an honest
fp32 accumulation, by its backward-error model). In norm: 2x the reference's own error plus the same allowances.
A more accurate kernel lies inside by construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .oracle import Oracle

_EPS32 = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Target:
    """One output as it must be. exact: the oracle (fp64), None for integers and booleans, which equal `reference`."""

    reference: Tensor
    exact: Tensor | None
    bound: Tensor | None
    norm_bound: float


def targets(
    reference: Callable[..., tuple[Tensor, ...]], oracle: Oracle, inputs: Sequence[Tensor], generator: torch.Generator
) -> tuple[Target, ...]:
    """Return what each output must be for these inputs. The inputs are not changed, whatever the reference does."""
    outputs = reference(*inputs)
    exacts = oracle(inputs)
    moved = [oracle(_moved(inputs, oracle.terms, generator, signed=s)) for s in (False, True)]
    return tuple(
        _target(out, exact, [m[i] for m in moved]) for i, (out, exact) in enumerate(zip(outputs, exacts, strict=True))
    )


def _moved(inputs: Sequence[Tensor], terms: int, generator: torch.Generator, *, signed: bool) -> list[Tensor]:
    moved = []
    for given in inputs:
        if given.is_floating_point():
            by = torch.rand(given.shape, generator=generator, dtype=torch.float64)
            by = (2 * by - 1 if signed else by) * _EPS32 * math.sqrt(terms)
            wide = given.to(torch.float64)
            # Infinite and huge values are masks: moving them would make nan of a difference that means nothing.
            moved.append(torch.where(wide.abs() < 1e30, wide + wide * by, wide))
        else:
            moved.append(given)
    return moved


def _target(out: Tensor, exact: Tensor, moved: Sequence[Tensor]) -> Target:
    if not out.is_floating_point():
        return Target(out.clone(), None, None, 0.0)
    if out.dtype == torch.float64:
        ulp_eps, small = torch.finfo(torch.float64).eps * 64, torch.finfo(torch.float64).tiny
    else:
        ulp_eps, small = torch.finfo(out.dtype).eps, torch.finfo(out.dtype).smallest_normal * torch.finfo(out.dtype).eps
    error = (out.to(torch.float64) - exact).abs()
    finite = torch.isfinite(error)
    error = torch.where(finite, error, 0.0)
    size = torch.where(torch.isfinite(exact), exact.abs(), 0.0)
    row_size = _row_max(size)
    relative = torch.where(row_size > 0, _row_max(error) / row_size, 0.0)
    worst = relative.max() if relative.numel() else torch.tensor(0.0)
    own = torch.where(row_size > 0, worst * row_size, _row_max(error))
    own = torch.minimum(own, error.max()) if error.numel() else own
    shift = torch.zeros_like(exact)
    for other in moved:
        shift = torch.maximum(shift, torch.nan_to_num((other - exact).abs(), nan=0.0, posinf=0.0))
    shift = 2 * _row_max(shift)
    ulp = torch.exp2(torch.floor(torch.log2(size.clamp(min=small)))) * ulp_eps
    bound = 4 * own + ulp.clamp(min=small) + shift
    norm_bound = 2 * error.norm() + ulp.norm() / 2 + shift.expand_as(exact).norm()
    return Target(out.clone(), exact, bound.expand_as(exact), float(norm_bound))


def _row_max(values: Tensor) -> Tensor:
    if values.dim() == 0 or values.numel() == 0:
        return values
    return values.amax(-1, keepdim=True)


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
