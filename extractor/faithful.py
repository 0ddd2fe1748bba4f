"""Tell whether what was captured computes what the model computes: a model may do otherwise while it is traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree


def difference(expected: Sequence[Any], got: Sequence[Any]) -> str | None:
    """Return one line on how the outputs of equal calls differ beyond rounding, None where they do not.

    Only tensors are compared, and no more is asked of them than half of their dtype's digits: this is no verification.
    """
    for one, other in zip(_tensors(expected), _tensors(got), strict=False):
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"{_spelled(one)} became {_spelled(other)}"
        error = _relative_error(one, other)
        if error > torch.finfo(one.dtype).eps ** 0.5 if one.is_floating_point() else error > 0:
            return f"an output of {_spelled(one)} is {error:.1%} off"
    return None


def _tensors(tree: Any) -> list[torch.Tensor]:
    leaves = (leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    return [leaf for leaf in leaves if leaf.layout is torch.strided and not leaf.is_complex()]


def _relative_error(one: torch.Tensor, other: torch.Tensor) -> float:
    if not one.is_floating_point():
        return float(not torch.equal(one, other))
    a, b = (torch.nan_to_num(t.detach().double()) for t in (one, other))
    return float((a - b).norm() / a.norm().clamp(min=1e-12))


def _spelled(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
