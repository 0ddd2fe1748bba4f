"""Softmax of wide rows: one reading finds maximum and sum, then the row is written.

Part of a row stays in registers, as it was loaded; the rest is read a second time, from the cache, where few rows under
way at a time have a place together. A row that starts off a border of LINE bytes is peeled to it.
"""

# mypy: ignore-errors
# ruff: noqa: N803, RET505, RUF005
import torch
import triton
import triton.language as tl

from .early_kernel import _launch, _wait

# Knobs, replaced by the proposer. HELD: 16-byte loads a lane whose values stay in registers. UNROLL: of the others, how
# many a lane has in flight. REGISTERS: at most, a thread; 0: any. EARLY: the kernel is launched before the one it
# follows has ended, and waits for it on the device (programmatic dependent launch). LINE: bytes, 16 or more: from
# borders of 128 on the loads of a warp meet no more lines of the cache than they fill.
WARPS = 16
HELD = 6
UNROLL = 2
REGISTERS = 64
EARLY = False
LINE = 128
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
def _fold(peak, total, x):
    """Take a tile [lanes, loads, vec] into the running maximum and sum of each lane."""
    new = tl.maximum(peak, tl.max(tl.max(x, axis=2), axis=1))
    return new, total * tl.exp(peak - new) + tl.sum(tl.sum(tl.exp(x - new[:, None, None]), axis=2), axis=1)


@triton.jit
def _unknown(x, HIDE: tl.constexpr):
    """Return x as a value the compiler knows nothing of: else it keeps the widened copy of all that is held."""
    if HIDE and x.dtype.primitive_bitwidth == 16:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)
    else:
        return x


@triton.jit
def _rows(
    x_ptr, out_ptr, n,
    LANES: tl.constexpr, VEC: tl.constexpr, BORDER: tl.constexpr, KEPT: tl.constexpr, TILES: tl.constexpr,
    LOGARITHM: tl.constexpr, HIDE: tl.constexpr, SOON: tl.constexpr,
):  # fmt: skip
    """One row a program. Rows are dense in both, so what is known of a border of one is known of the other's.

    Of equally dense dimensions of a tile Triton fills the first with threads first: a lane keeps its loads.
    """
    _wait(SOON)
    row = tl.program_id(0).to(tl.int64)
    begin = row * n
    end = begin + n
    start = (begin + BORDER - 1) // BORDER * BORDER
    stop = tl.maximum(start, end // VEC * VEC)
    lane = tl.arange(0, LANES)
    tail = lane >= BORDER
    place = tl.where(tail, stop + lane - BORDER, begin + lane)
    on_edge = place < tl.where(tail, end, tl.minimum(start, end))
    edge = tl.load(x_ptr + place, mask=on_edge, other=-float("inf")).to(tl.float32)
    length = (stop - start).to(tl.int32)
    at = lane[:, None, None] * VEC + tl.arange(0, VEC)[None, None, :]
    held = ()
    for tile in tl.static_range(KEPT):
        here = tile * (LANES * VEC) + at
        held = held + (tl.load(x_ptr + start + here, eviction_policy="evict_first"),)
    first: tl.constexpr = KEPT * LANES * VEC
    step: tl.constexpr = TILES * LANES * VEC
    many = at + tl.arange(0, TILES)[None, :, None] * (LANES * VEC)
    peak = tl.full([LANES], LOWEST, tl.float32)
    total = tl.zeros([LANES], tl.float32)
    for done in tl.range(first, length, step):
        where = done + many
        x = tl.load(x_ptr + start + where, mask=where < length, other=-float("inf"), eviction_policy="evict_last")
        peak, total = _fold(peak, total, x.to(tl.float32))
    for tile in tl.static_range(KEPT):
        peak, total = _fold(peak, total, _unknown(held[tile], HIDE).to(tl.float32))
    new = tl.maximum(peak, edge)
    total = total * tl.exp(peak - new) + tl.exp(edge - new)
    most = tl.max(new, axis=0)
    whole = tl.sum(total * tl.exp(new - most), axis=0)
    scale = tl.log(whole) if LOGARITHM else 1.0 / whole
    rim = _finish(edge, most, scale, LOGARITHM).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + place, rim, mask=on_edge)
    for tile in tl.static_range(KEPT):
        here = tile * (LANES * VEC) + at
        wide = _unknown(held[tile], HIDE).to(tl.float32)
        done_with = _finish(wide, most, scale, LOGARITHM).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + start + here, done_with)
    for done in tl.range(first, length, step):
        where = done + many
        x = tl.load(x_ptr + start + where, mask=where < length, other=0.0, eviction_policy="evict_first")
        made = _finish(x.to(tl.float32), most, scale, LOGARITHM).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + start + where, made, mask=where < length)


def _softmax(x):
    x = x.contiguous()
    n = x.shape[-1]
    out = torch.empty(x.shape, dtype=OUT, device=x.device)
    lanes, vec = 32 * WARPS, 16 // x.element_size()
    limit, launch = {"maxnreg": REGISTERS} if REGISTERS else {}, _launch(EARLY, x.device)
    border = min(LINE // x.element_size(), lanes // 2)  # both rims have their lanes
    sure = n if n % border == 0 else n - border - vec  # of a row, at least so much lies between borders
    if out.numel():
        _rows[(x.numel() // n,)](
            x, out, n, LANES=lanes, VEC=vec, BORDER=border, KEPT=max(0, min(HELD, sure // (lanes * vec))), TILES=UNROLL,
            LOGARITHM=LOG, HIDE=x.device.type != "cpu", SOON=bool(launch),
            num_warps=WARPS, **limit, **launch,
        )  # fmt: skip
    return out
