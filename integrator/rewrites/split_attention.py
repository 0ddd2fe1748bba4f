"""A back end of attention for steps of decoding, where torch has none: few queries, and a mask that all heads share."""

from __future__ import annotations

from typing import Any

import torch

_WIDTHS = (16, 32, 64, 128, 256)
_MOST_QUERIES = 16
# Programs a multiprocessor works at together, so that one waits for memory while another computes.
_TOGETHER = 4


def attention_by_splits(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """scaled_dot_product_attention with the keys split among programs.

    Raises RuntimeError, as torch's own back ends do, where it does not take the call.
    """
    if is_causal or dropout_p or enable_gqa or not _takes(query, key, value, attn_mask):
        raise RuntimeError("attention_by_splits takes up to 16 queries on a GPU and a bool mask shared by all heads")
    by = query.shape[-1] ** -0.5 if scale is None else scale
    made: torch.Tensor = split_attention(query, key, value, attn_mask, by)
    return made


def _takes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any) -> bool:
    if query.device.type != "cuda" or query.dim() != 4 or query.shape[2] > _MOST_QUERIES:
        return False
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or mask.dim() != 4:
        return False
    rows, heads, _, width = query.shape
    like = (rows, heads, key.shape[2], width)
    fits = width in _WIDTHS and tuple(key.shape) == like and tuple(value.shape) == like
    shared = tuple(mask.shape) in {(1, 1, 1, like[2]), (rows, 1, 1, like[2])}
    dense = all(t.stride(-1) == 1 and t.dtype == query.dtype for t in (query, key, value))
    return fits and shared and dense and like[2] > 0 and query.dtype in (torch.float16, torch.bfloat16)


@torch.library.custom_op("hotswap::split_attention", mutates_args=())
def split_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    from . import split_attention_kernel  # Triton is there where a GPU is

    programs = _TOGETHER * torch.cuda.get_device_properties(query.device).multi_processor_count
    made: torch.Tensor = split_attention_kernel.split_attention(query, key, value, mask, scale, programs)  # type: ignore[no-untyped-call]
    return made


@split_attention.register_fake
def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)
