"""Say what a computed attention mask amounts to: nothing, a causal mask, a sliding window, or none of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class MaskForm:
    """kind: "all", every query sees every key; "causal", key <= query; "window", key within query - left and
    query + right.
    """

    kind: Literal["all", "causal", "window"]
    left: int = 0
    right: int = 0


def mask_form(mask: torch.Tensor, queries: int, keys: int) -> MaskForm | None:
    """Return the form of a mask as scaled_dot_product_attention takes it, None where it has none of them.

    mask: broadcastable to (..., queries, keys); bool (True is seen) or float (added: 0 is seen; -inf, or the least
    finite value of the dtype, is not). Causal forms are those of equally many queries and keys.
    """
    seen = _seen(mask)
    if seen is None or seen.dim() < 2:
        return None
    if bool(seen.all()):
        return MaskForm("all")
    if queries != keys or seen.shape[-2:] != (queries, keys):
        return None
    one = seen.reshape(-1, queries, keys) if seen.dim() == 2 else seen[(0,) * (seen.dim() - 2)][None]
    if not bool((seen == one[0]).all()):
        return None
    first = one[0]
    causal = torch.ones_like(first).tril()
    if bool((first == causal).all()):
        return MaskForm("causal")
    # What the last query sees of those before it, and the first of those behind it, decides the window if it is one.
    left, right = int(first[-1].sum()) - 1, int(first[0].sum()) - 1
    if left >= 0 and right >= 0 and bool((first == torch.ones_like(first).triu(-left).tril(right)).all()):
        return MaskForm("window", left, right)
    return None


def _seen(mask: torch.Tensor) -> torch.Tensor | None:
    """Return the mask as True where a key is seen; None where it is something else, a position bias for example."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.dtype.is_floating_point:
        return None
    seen = mask == 0
    hidden = mask <= torch.finfo(mask.dtype).min
    return seen if bool((seen | hidden).all()) else None
