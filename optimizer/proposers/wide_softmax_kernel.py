"""Softmax of wide rows: one reading finds maximum and sum, a second, from the cache, writes.

Many warps a row keep few rows under way, so that together they stay in the cache between the two readings. A row that
starts off a 16-byte border is peeled to it.
"""

# mypy: ignore-errors
# ruff: noqa: N803, RET505
import torch
import triton
import triton.language as tl

# Knobs, replaced by the proposer. UNROLL: 16-byte loads a lane in flight.
WARPS = 32
UNROLL = 4
# What the reference does.
OUT = torch.float32
LOG = False

LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _finish(x, most, scale, LOGARITHM: tl.constexpr):
    if LOGARITHM:
        return x - most - scale
    else:
        return tl.exp(x - most) * scale


@triton.jit
def _rows(
    x_ptr, out_ptr, n,
    LANES: tl.constexpr, VEC: tl.constexpr, TILES: tl.constexpr, LOGARITHM: tl.constexpr,
):  # fmt: skip
    """One row a program. Rows are dense in both, so what is known of a border of one is known of the other's."""
    row = tl.program_id(0).to(tl.int64)
    begin = row * n
    end = begin + n
    start = (begin + VEC - 1) // VEC * VEC
    stop = tl.maximum(start, end // VEC * VEC)
    lane = tl.arange(0, LANES)
    tail = lane >= VEC
    place = tl.where(tail, stop + lane - VEC, begin + lane)
    on_edge = (lane < 2 * VEC) & (place < tl.where(tail, end, tl.minimum(start, end)))
    edge = tl.load(x_ptr + place, mask=on_edge, other=-float("inf")).to(tl.float32)
    peak = tl.maximum(edge, LOWEST)
    total = tl.exp(edge - peak)
    length = (stop - start).to(tl.int32)
    step: tl.constexpr = TILES * LANES * VEC
    at = tl.arange(0, TILES)[:, None, None] * (LANES * VEC) + tl.arange(0, LANES)[None, :, None] * VEC
    at += tl.arange(0, VEC)[None, None, :]
    for done in tl.range(0, length, step):
        where = done + at
        x = tl.load(x_ptr + start + where, mask=where < length, other=-float("inf"), eviction_policy="evict_last")
        x = x.to(tl.float32)
        new = tl.maximum(peak, tl.max(tl.max(x, axis=2), axis=0))
        total = total * tl.exp(peak - new) + tl.sum(tl.sum(tl.exp(x - new[None, :, None]), axis=2), axis=0)
        peak = new
    most = tl.max(peak, axis=0)
    whole = tl.sum(total * tl.exp(peak - most), axis=0)
    scale = tl.log(whole) if LOGARITHM else 1.0 / whole
    rim = _finish(edge, most, scale, LOGARITHM).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + place, rim, mask=on_edge)
    for done in tl.range(0, length, step):
        where = done + at
        x = tl.load(x_ptr + start + where, mask=where < length, other=0.0, eviction_policy="evict_first")
        made = _finish(x.to(tl.float32), most, scale, LOGARITHM).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + start + where, made, mask=where < length)


def _softmax(x):
    x = x.contiguous()
    n = x.shape[-1]
    out = torch.empty(x.shape, dtype=OUT, device=x.device)
    if out.numel():
        _rows[(x.numel() // n,)](
            x, out, n, LANES=32 * WARPS, VEC=16 // x.element_size(), TILES=UNROLL, LOGARITHM=LOG, num_warps=WARPS
        )  # fmt: skip
    return out
