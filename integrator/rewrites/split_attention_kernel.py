"""Attention of a few queries behind a mask that all heads share: programs share the keys, a second stage joins them.

A step of decoding reads each cached key and value once, and has too few heads to fill a GPU by themselves. Keys that
the mask hides are not read.
"""

# mypy: ignore-errors
# ruff: noqa: N803
import torch
import triton
import triton.language as tl

KEYS = 64
# Queries of one head: what the matrix unit takes at least.
LEAST_QUERIES = 16


@triton.jit
def _parts(
    q_ptr, k_ptr, v_ptr, mask_ptr, part_ptr, most_ptr, sum_ptr, q_row, q_head, q_query, k_row, k_head, k_key,
    v_row, v_head, v_key, mask_row, mask_key, heads, queries, length, scale,
    KEYS: tl.constexpr, BLOCKS: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    both = tl.program_id(0)
    split = tl.program_id(1)
    row, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    at, wide, keys = tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, KEYS)
    there = (at < queries)[:, None]
    query = tl.load(q_ptr + row * q_row + head * q_head + at[:, None] * q_query + wide[None, :], mask=there, other=0.0)
    most = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    part = tl.zeros([QUERIES, WIDTH], tl.float32)
    for block in range(BLOCKS):
        key = (split * BLOCKS + block) * KEYS + keys
        seen = tl.load(mask_ptr + row * mask_row + key * mask_key, mask=key < length, other=0) != 0
        live = seen[:, None]
        k = tl.load(
            k_ptr + row * k_row + head * k_head + key[:, None].to(tl.int64) * k_key + wide[None, :],
            mask=live,
            other=0.0,
        )
        score = tl.where(seen[None, :], tl.dot(query, tl.trans(k)) * scale, float("-inf"))
        higher = tl.maximum(most, tl.max(score, 1))
        base = tl.where(higher > float("-inf"), higher, 0.0)
        chance = tl.exp2(score - base[:, None])
        less = tl.exp2(most - base)
        v = tl.load(
            v_ptr + row * v_row + head * v_head + key[:, None].to(tl.int64) * v_key + wide[None, :],
            mask=live,
            other=0.0,
        )
        total = total * less + tl.sum(chance, 1)
        part = part * less[:, None] + tl.dot(chance.to(v.dtype), v)
        most = higher
    place = (both.to(tl.int64) * SPLITS + split) * queries + at
    tl.store(part_ptr + place[:, None] * WIDTH + wide[None, :], part, mask=there)
    tl.store(most_ptr + place, most, mask=at < queries)
    tl.store(sum_ptr + place, total, mask=at < queries)


@triton.jit
def _join(
    part_ptr, most_ptr, sum_ptr, out_ptr, queries,
    SPLITS: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    both, query = tl.program_id(0).to(tl.int64), tl.program_id(1)
    splits, wide = tl.arange(0, PADDED), tl.arange(0, WIDTH)
    place = (both * SPLITS + splits) * queries + query
    live = splits < SPLITS
    most = tl.load(most_ptr + place, mask=live, other=float("-inf"))
    highest = tl.max(most, 0)
    # A split that saw nothing has -inf and counts for nothing; where none saw anything the result is zero, as torch's.
    weight = tl.where(most > float("-inf"), tl.exp2(most - highest), 0.0)
    total = tl.sum(weight * tl.load(sum_ptr + place, mask=live, other=0.0), 0)
    part = tl.load(part_ptr + place[:, None] * WIDTH + wide[None, :], mask=live[:, None], other=0.0)
    made = tl.sum(weight[:, None] * part, 0) / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + (both * queries + query) * WIDTH + wide, made.to(out_ptr.dtype.element_ty))


def split_attention(query, key, value, mask, scale, programs):
    """Return attention (rows, heads, queries, width), contiguous.

    query: (rows, heads, at most 16, width), a power of two wide; key, value: (rows, heads, length, width); the last
    dimension of each dense. mask: bool, (1 or rows, 1, 1, length), True is seen. programs: how many the device takes
    at once.
    """
    rows, heads, queries, width = query.shape
    length = key.shape[2]
    blocks = triton.cdiv(length, KEYS)
    each = triton.cdiv(blocks, max(1, min(blocks, programs // (rows * heads))))
    splits = triton.cdiv(blocks, each)
    place = {"dtype": torch.float32, "device": query.device}
    part = torch.empty((rows * heads, splits, queries, width), **place)
    most, total = torch.empty((2, rows * heads, splits, queries), **place)
    out = torch.empty((rows, heads, queries, width), dtype=query.dtype, device=query.device)
    _parts[(rows * heads, splits)](
        query, key, value, mask, part, most, total, *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
        mask.stride(0) if mask.shape[0] > 1 else 0, mask.stride(3), heads, queries, length,
        scale * 1.4426950408889634,
        KEYS=KEYS, BLOCKS=each, QUERIES=LEAST_QUERIES, WIDTH=width, SPLITS=splits, num_warps=4, num_stages=3,
    )  # fmt: skip
    _join[(rows * heads, queries)](
        part, most, total, out, queries, SPLITS=splits, PADDED=triton.next_power_of_2(splits), WIDTH=width, num_warps=4
    )
    return out
