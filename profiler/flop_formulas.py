"""FLOPs of matmuls that torch's own registry lacks, or whose formula there refuses what the op takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_aten = torch.ops.aten


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the FLOPs of attention's two matmuls; shapes are [batch, heads, length, head size].

    torch 2.11's own formula refuses key heads that several query heads share, though they cost as many FLOPs as any.
    """
    batch, heads, rows, size = query
    return 2 * batch * heads * rows * key[2] * (size + value[3])


def _grouped(left: Sequence[int], right: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the FLOPs of a grouped matmul: each row, or column, or product is of one group.

    left: [groups, rows, inner], or [rows, inner] where groups are ranges of the rows or, with a `right` of two
    dimensions too, of the inner dimension. right: [groups, inner, columns], or without groups likewise.
    """
    groups = left[0] if len(left) == len(right) == 3 else 1
    return 2 * groups * left[-2] * left[-1] * right[-1]


FLOP_FORMULAS: dict[Any, Any] = {
    _aten._scaled_dot_product_flash_attention: _attention,
    _aten._scaled_dot_product_efficient_attention: _attention,
    _aten._scaled_dot_product_cudnn_attention: _attention,
    _aten._grouped_mm: _grouped,
}
"""Op to formula on shapes, as FlopCounterMode takes in `custom_mapping`."""
