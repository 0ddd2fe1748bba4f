"""FLOPs of fused attention, by a formula that takes key heads which several query heads share.

torch 2.11's own refuses those, though they cost as many FLOPs as any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_aten = torch.ops.aten


def _flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Return the FLOPs of attention's two matmuls; shapes are [batch, heads, length, head size]."""
    batch, heads, rows, size = query
    return 2 * batch * heads * rows * key[2] * (size + value[3])


ATTENTION_FLOPS: dict[Any, Any] = {
    _aten._scaled_dot_product_flash_attention: _flops,
    _aten._scaled_dot_product_efficient_attention: _flops,
    _aten._scaled_dot_product_cudnn_attention: _flops,
}
"""Op to formula on shapes, as FlopCounterMode takes in `custom_mapping`."""
