"""Attention behind a sliding window by a kernel of ours, which reads no more keys than a block of queries sees."""

from __future__ import annotations

import torch

_WIDTHS = (16, 32, 64, 128, 256)


def attention_by_band(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, left: int, right: int, scale: float | None
) -> torch.Tensor:
    """scaled_dot_product_attention in which query i sees keys i - left to i + right.

    query: (rows, heads, length, width); key, value: (rows, heads or a divisor of them, length, width). Raises
    RuntimeError, as torch's own back ends do, where it does not take the call.
    """
    if not takes(query, key, value):
        raise RuntimeError("attention_by_band takes equally many queries and keys of 16 bits on a GPU")
    by = query.shape[-1] ** -0.5 if scale is None else scale
    made: torch.Tensor = band_attention(query, key, value, None, left, right, by)
    return made


def takes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the kernel takes these: 16 bits on a GPU, a power of two wide, as many keys as queries."""
    if query.device.type != "cuda" or query.dtype not in (torch.float16, torch.bfloat16) or query.dim() != 4:
        return False
    rows, heads, length, width = query.shape
    few = key.shape[1]
    fits = tuple(key.shape) == tuple(value.shape) == (rows, few, length, width) and few > 0 and heads % few == 0
    dense = all(t.stride(-1) == 1 and t.dtype == query.dtype for t in (query, key, value))
    return fits and dense and width in _WIDTHS and length > 0


@torch.library.custom_op("hotswap::band_attention", mutates_args=())
def band_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor | None,
    left: int,
    right: int,
    scale: float,
) -> torch.Tensor:
    from . import band_attention_kernel  # Triton is there where a GPU is

    made: torch.Tensor = band_attention_kernel.band_attention(query, key, value, left, right, scale, sinks)  # type: ignore[no-untyped-call]
    return made


@band_attention.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor | None,
    left: int,
    right: int,
    scale: float,
) -> torch.Tensor:
    rows, heads, length, width = query.shape
    return torch.empty((rows, length, heads, width), dtype=query.dtype, device=query.device).transpose(1, 2)
