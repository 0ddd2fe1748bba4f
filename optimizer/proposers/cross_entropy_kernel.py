"""Cross entropy of wide rows in one reading of the logits, and a second stage that adds the rows up in a fixed order.

Every lane keeps a running maximum and sum of 16-byte loads; a row that starts off a border of LINE bytes is peeled to
it.
"""

# mypy: ignore-errors
# ruff: noqa: N803, SIM102
import torch
import triton
import triton.language as tl

from .loss_kernel import _launch, _reduced, _wait

# Knobs, replaced by the proposer. PARTS: programs a row. UNROLL: 16-byte loads a lane in flight. EARLY: a kernel is
# launched before the one it depends on has ended, and waits for it on the device (programmatic dependent launch). LINE:
# bytes, 16 or more: from borders of 128 on the loads of a warp meet no more lines of the cache than they fill.
WARPS = 4
UNROLL = 2
PARTS = 1
EARLY = False
LINE = 128
# What the reference does.
IGNORE = -100
REDUCTION = "mean"
OUT = torch.float32

LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _edges(x_ptr, begin, start, stop, end, LANES: tl.constexpr, BORDER: tl.constexpr):
    """Return what lies before a row's first border and behind its last 16 bytes, a value a lane, -inf elsewhere."""
    lane = tl.arange(0, LANES)
    tail = lane >= BORDER
    at = tl.where(tail, stop + lane - BORDER, begin + lane)
    inside = at < tl.where(tail, end, tl.minimum(start, end))
    return tl.load(x_ptr + at, mask=inside, other=-float("inf")).to(tl.float32)


@triton.jit
def _fold(peak, total, x):
    """Take a tile [lanes, loads, vec] into the running maximum and sum of each lane."""
    new = tl.maximum(peak, tl.max(tl.max(x, axis=2), axis=1))
    part = tl.sum(tl.sum(tl.exp(x - new[:, None, None]), axis=2), axis=1)
    return new, total * tl.exp(peak - new) + part


@triton.jit
def _rows(
    x_ptr, target_ptr, loss_ptr, peak_ptr, total_ptr, n, stride,
    IGNORED: tl.constexpr, LANES: tl.constexpr, VEC: tl.constexpr, BORDER: tl.constexpr, TILES: tl.constexpr,
    PEEL: tl.constexpr, SPLIT: tl.constexpr, SOON: tl.constexpr,
):  # fmt: skip
    """Of equally dense dimensions of the tile Triton fills the first with threads first: a lane keeps its loads."""
    _wait(SOON)
    row = tl.program_id(0).to(tl.int64)
    begin = row * stride
    end = begin + n
    target = tl.load(target_ptr + row)
    start = (begin + BORDER - 1) // BORDER * BORDER
    stop = tl.maximum(start, end // VEC * VEC)
    if PEEL:
        edge = _edges(x_ptr, begin, start, stop, end, LANES, BORDER)
    peak = tl.full([LANES], LOWEST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    length = (stop - start).to(tl.int32)
    share = tl.cdiv(length, SPLIT * VEC) * VEC
    first = tl.program_id(1) * share
    last = tl.minimum(first + share, length)
    step: tl.constexpr = TILES * LANES * VEC
    at = tl.arange(0, TILES)[None, :, None] * (LANES * VEC) + tl.arange(0, LANES)[:, None, None] * VEC
    at += tl.arange(0, VEC)[None, None, :]
    for done in tl.range(first, last, step):
        where = done + at
        x = tl.load(x_ptr + start + where, mask=where < last, other=-float("inf"), eviction_policy="evict_first")
        peak, total = _fold(peak, total, x.to(tl.float32))
    # What waits for a load of its own comes last: a warp stands still where it first needs what is not there.
    picked = tl.load(x_ptr + begin + target, mask=(target >= 0) & (target < n), other=float("nan")).to(tl.float32)
    if PEEL:
        if tl.program_id(1) == 0:
            new = tl.maximum(peak, edge)
            total = total * tl.exp(peak - new) + tl.exp(edge - new)
            peak = new
    most = tl.max(peak, axis=0)
    whole = tl.sum(total * tl.exp(peak - most), axis=0)
    if SPLIT == 1:
        loss = most + tl.log(whole) - picked
        tl.store(loss_ptr + row, tl.where(target == IGNORED, 0.0, loss))
    else:
        tl.store(peak_ptr + row * SPLIT + tl.program_id(1), most)
        tl.store(total_ptr + row * SPLIT + tl.program_id(1), whole)


@triton.jit
def _join(
    x_ptr, target_ptr, loss_ptr, peak_ptr, total_ptr, n, stride,
    IGNORED: tl.constexpr, SPLIT: tl.constexpr, SOON: tl.constexpr,
):  # fmt: skip
    """Join the parts of one row."""
    _wait(SOON)
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(target_ptr + row)
    inside = (target >= 0) & (target < n)
    picked = tl.load(x_ptr + row * stride + target, mask=inside, other=float("nan")).to(tl.float32)
    at = row * SPLIT + tl.arange(0, SPLIT)
    peak = tl.load(peak_ptr + at)
    most = tl.max(peak, axis=0)
    whole = tl.sum(tl.load(total_ptr + at) * tl.exp(peak - most), axis=0)
    loss = most + tl.log(whole) - picked
    tl.store(loss_ptr + row, tl.where(target == IGNORED, 0.0, loss))


def _cross_entropy(logits, target):
    n = logits.shape[-1]
    x = logits.reshape(-1, n)
    x = x if x.stride(1) == 1 else x.contiguous()
    target = target.reshape(-1).contiguous()
    rows, stride = target.shape[0], x.stride(0)
    alone = REDUCTION == "none"
    loss = torch.empty(rows, dtype=OUT if alone else torch.float32, device=x.device)
    peak, total = torch.empty(2, rows, PARTS, device=x.device) if PARTS > 1 else (loss, loss)
    vec = 16 // x.element_size()
    launch = _launch(EARLY, x.device)
    if rows:
        border = min(LINE // x.element_size(), 16 * WARPS)  # both rims have their lanes
        peel = n % vec != 0 or stride % border != 0
        _rows[(rows, PARTS)](
            x, target, loss, peak, total, n, stride,
            IGNORED=IGNORE, LANES=32 * WARPS, VEC=vec, BORDER=border, TILES=UNROLL, PEEL=peel, SPLIT=PARTS,
            SOON=bool(launch), num_warps=WARPS, **launch,
        )  # fmt: skip
        if PARTS > 1:
            _join[(rows,)](
                x, target, loss, peak, total, n, stride, IGNORED=IGNORE, SPLIT=PARTS, SOON=bool(launch),
                num_warps=1, **launch,
            )  # fmt: skip
    return loss if alone else _reduced(loss, target, IGNORE, REDUCTION == "mean", OUT, EARLY)
