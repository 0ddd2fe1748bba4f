"""Decide whether one leaf of the patched model's output is as good as the model's own.

A candidate kernel is allowed to round differently, never to be worse: its error to a wider run of the same model may be
twice eager's own error in norm and four times by element, plus one unit in the last place of the leaf's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .output_tree import Leaf
from .results import LeafCheck

NORM_FACTOR = 2.0
ELEMENT_FACTOR = 4.0


@dataclass(frozen=True)
class Judged:
    """A leaf's figures and, where it failed, why; `bitwise` when every bit equals eager's."""

    check: LeafCheck
    reason: str | None
    bitwise: bool


@dataclass(frozen=True)
class Agreement:
    """How predictions of a logits-like leaf compare.

    kl, eager_kl: mean KL in nats from the wider run's; without one kl is from eager's and eager_kl None.
    """

    path: str
    kl: float
    eager_kl: float | None
    top1: float


def compare(eager: Leaf, swapped: Leaf, wider: torch.Tensor | None) -> Judged:
    """Return the figures of one tensor leaf; shape and dtype agree. wider: the yardstick, if there is one."""
    one, other = _dense(eager), _dense(swapped)
    bitwise = _same_bits(one, other)
    if not (one.is_floating_point() or one.is_complex()):
        wrong = int((one != other).sum()) if not bitwise else 0
        reason = None if bitwise else f"{wrong} of {one.numel()} integers differ; they must be equal"
        return Judged(_figures(eager, wrong / max(one.numel(), 1), 0.0, float(wrong > 0), 1.0, reason), reason, bitwise)
    reason = _special_values(one, other)
    finite = torch.isfinite(one) & torch.isfinite(other)
    yardstick = one if wider is None else wider.detach().to(one.device)
    finite &= torch.isfinite(yardstick)
    a, b, r = (tensor[finite].to(_exact(tensor)) for tensor in (one, other, yardstick))
    norm = float(torch.linalg.vector_norm(r)) or 1.0
    error = float(torch.linalg.vector_norm(b - r)) / norm
    eager_error = float(torch.linalg.vector_norm(a - r)) / norm
    if reason is None and not bitwise:
        reason = _too_far(a, b, r, error, eager_error, one.dtype, has_yardstick=wider is not None)
    return Judged(_figures(eager, error, eager_error, _worst(b - r), _cosine(b, r), reason), reason, bitwise)


def agreement(eager: Leaf, swapped: Leaf, wider: torch.Tensor | None) -> Agreement:
    """Return KL and top-1 agreement over the last dimension of a logits-like leaf; rows with a NaN are left out."""
    a = _dense(eager).double().flatten(0, -2)
    b = _dense(swapped).double().flatten(0, -2)
    r = a if wider is None else wider.detach().double().flatten(0, -2)
    rows = ~(a.isnan() | b.isnan() | r.isnan()).any(-1)
    a, b, r = a[rows], b[rows], r[rows]
    if not a.numel():
        return Agreement(eager.path, 0.0, None, 1.0)
    top1 = float((a.argmax(-1) == b.argmax(-1)).double().mean())
    return Agreement(eager.path, _kl(r, b), None if wider is None else _kl(r, a), top1)


def _too_far(
    a: torch.Tensor,
    b: torch.Tensor,
    r: torch.Tensor,
    error: float,
    eager_error: float,
    dtype: torch.dtype,
    *,
    has_yardstick: bool,
) -> str | None:
    ulp = torch.finfo(dtype).eps
    if not has_yardstick:
        # Two correct runs differ by rounding alone: a few units of the leaf's dtype, and of fp32 accumulators inside.
        bound = 4 * ulp + 64 * torch.finfo(torch.float32).eps
        return None if error <= bound else f"error {error:.3g} to eager exceeds {bound:.3g} (no wider run to judge by)"
    bound = NORM_FACTOR * eager_error + ulp
    if not error <= bound:
        return f"error {error:.3g} in norm exceeds {bound:.3g} (2x eager's own {eager_error:.3g}, plus 1 ulp)"
    limit = ELEMENT_FACTOR * _worst(a - r) + ulp * r.abs()
    wrong = ~((b - r).abs() <= limit)
    if bool(wrong.any()):
        worst = int(torch.where(wrong, (b - r).abs() - limit, -1.0).argmax())
        return (
            f"{int(wrong.sum())} of {r.numel()} values too far, worst off by {float((b - r).abs()[worst]):.3g} "
            f"where {float(limit[worst]):.3g} is allowed (4x eager's own worst, plus 1 ulp)"
        )
    return None


def _special_values(one: torch.Tensor, other: torch.Tensor) -> str | None:
    """Return why NaN or infinite positions disagree, None when they agree."""
    new, lost = int((other.isnan() & ~one.isnan()).sum()), int((one.isnan() & ~other.isnan()).sum())
    if new:
        return f"{new} new NaN where eager is finite"
    if lost:
        return f"{lost} values that are NaN in eager are not NaN"
    infinite = one.isinf() | other.isinf()
    wrong = int((one[infinite] != other[infinite]).sum())
    return f"{wrong} infinite values differ from eager's" if wrong else None


def _figures(
    leaf: Leaf, error: float, eager_error: float, worst: float, cosine: float, reason: str | None
) -> LeafCheck:
    assert leaf.tensor is not None
    dtype, shape = str(leaf.tensor.dtype).removeprefix("torch."), tuple(leaf.tensor.shape)
    error, eager_error, worst = (min(figure, 1e300) for figure in (error, eager_error, worst))  # records hold no inf
    return LeafCheck(leaf.path, dtype, shape, error, eager_error, worst, cosine, reason is None)


def _dense(leaf: Leaf) -> torch.Tensor:
    assert leaf.tensor is not None
    return leaf.tensor.to_dense() if leaf.tensor.layout != torch.strided else leaf.tensor


def _exact(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = (one == other) | (one.isnan() & other.isnan())
    return bool(same.all())


def _worst(difference: torch.Tensor) -> float:
    return float(difference.abs().max()) if difference.numel() else 0.0


def _cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    norms = float(torch.linalg.vector_norm(one)) * float(torch.linalg.vector_norm(other))
    if norms == 0.0:
        return 1.0 if bool((one == other).all()) else 0.0
    return min(1.0, float(torch.vdot(other.flatten(), one.flatten()).real) / norms)


def _kl(reference: torch.Tensor, other: torch.Tensor) -> float:
    logs = torch.log_softmax(reference, -1)
    terms = torch.where(logs > -torch.inf, logs.exp() * (logs - torch.log_softmax(other, -1)), 0.0)
    # Two masked (-inf) logits make inf - inf; where the model gives no probability there is nothing to compare.
    return max(0.0, float(terms.nan_to_num(0.0, posinf=1e9, neginf=0.0).sum(-1).mean()))
