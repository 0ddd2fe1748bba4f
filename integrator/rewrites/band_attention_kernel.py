"""Attention of which each query sees a band of keys around it: a program takes a block of queries and only their keys.

A flash kernel with a window works in blocks as long as a short window, and masks most of what it computes.
"""

# mypy: ignore-errors
# ruff: noqa: N803
import torch
import triton
import triton.language as tl

# Bands up to this many keys are read in small blocks, of which less is outside.
SHORT = 320


@triton.jit
def _band(
    q_ptr, k_ptr, v_ptr, sink_ptr, out_ptr, q_row, q_head, q_query, k_row, k_head, k_key, v_row, v_head, v_key,
    sink_row, sink_head, sink_query, out_row, out_head, out_query, heads, group, length, left, right, scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, SINK: tl.constexpr,
):  # fmt: skip
    start = tl.program_id(0) * QUERIES
    both = tl.program_id(1)
    row, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    few = head // group
    at, wide, keys = start + tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, KEYS)
    there = (at < length)[:, None]
    query = tl.load(
        q_ptr + row * q_row + head * q_head + at[:, None].to(tl.int64) * q_query + wide[None, :], mask=there, other=0.0
    )
    most = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    part = tl.zeros([QUERIES, WIDTH], tl.float32)
    first = tl.maximum(start - left, 0) // KEYS * KEYS
    last = tl.minimum(start + QUERIES + right, length)
    for begin in range(first, last, KEYS):
        key = begin + keys
        live = (key < length)[:, None]
        k = tl.load(
            k_ptr + row * k_row + few * k_head + key[:, None].to(tl.int64) * k_key + wide[None, :],
            mask=live,
            other=0.0,
        )
        far = key[None, :] - at[:, None]
        seen = (far >= -left) & (far <= right) & (key < length)[None, :]
        score = tl.where(seen, tl.dot(query, tl.trans(k)) * scale, float("-inf"))
        higher = tl.maximum(most, tl.max(score, 1))
        base = tl.where(higher > float("-inf"), higher, 0.0)
        chance = tl.exp2(score - base[:, None])
        less = tl.exp2(most - base)
        v = tl.load(
            v_ptr + row * v_row + few * v_head + key[:, None].to(tl.int64) * v_key + wide[None, :],
            mask=live,
            other=0.0,
        )
        total = total * less + tl.sum(chance, 1)
        part = part * less[:, None] + tl.dot(chance.to(v.dtype), v)
        most = higher
    if SINK:
        sink = tl.load(
            sink_ptr + row * sink_row + head * sink_head + at.to(tl.int64) * sink_query, mask=at < length, other=0.0
        ).to(tl.float32)
        # One logit more in the sum, in the base of 2 as the scores.
        higher = tl.maximum(most, sink * 1.4426950408889634)
        less = tl.exp2(most - higher)
        total = total * less + tl.exp2(sink * 1.4426950408889634 - higher)
        part = part * less[:, None]
    made = part / tl.where(total > 0, total, 1.0)[:, None]
    place = row * out_row + head * out_head + at[:, None].to(tl.int64) * out_query + wide[None, :]
    tl.store(out_ptr + place, made.to(out_ptr.dtype.element_ty), mask=there)


def band_attention(query, key, value, left, right, scale, sinks=None):
    """Return attention (rows, heads, length, width), laid out as (rows, length, heads, width).

    query: (rows, heads, length, width), a power of two wide; key, value: (rows, heads or a divisor of them, length,
    width); the last dimension of each dense. A query i sees the keys i - left to i + right. sinks: logits (rows, heads,
    length, 1) of one key more each, which has no value.
    """
    rows, heads, length, width = query.shape
    out = torch.empty((rows, length, heads, width), dtype=query.dtype, device=query.device).transpose(1, 2)
    is_short = left + 1 + right <= SHORT
    queries, warps = (64, 4) if is_short or width > 128 else (128, 8)
    given = sinks if sinks is not None else query
    _band[(triton.cdiv(length, queries), rows * heads)](
        query, key, value, given, out, *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
        *given.stride()[:3], *out.stride()[:3], heads, heads // key.shape[1], length, left, right,
        scale * 1.4426950408889634,
        QUERIES=queries, KEYS=64 if width <= 128 else 32, WIDTH=width, SINK=sinks is not None,
        num_warps=warps, num_stages=2,
    )  # fmt: skip
    return out
