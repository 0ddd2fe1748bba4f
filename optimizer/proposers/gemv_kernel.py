"""A linear of one row: every warp dots rows of the weight of its own with the row, in 16-byte loads, fp32 accumulated.

Where the weight has fewer rows than a program has warps, the warps share a row; where it has too few for the device,
several programs share one and a second stage adds their parts in a fixed order.
"""

# mypy: ignore-errors
# ruff: noqa: N803
import torch
import triton
import triton.language as tl

from .early_kernel import _launch, _wait

# Knobs, replaced by the proposer. OUTS: rows of the weight a program. DEEP: 16-byte loads a lane in flight for each.
# PARTS: programs that share rows. EARLY: launched before the kernel it depends on has ended, and waits on the device.
WARPS = 4
OUTS = 4
DEEP = 4
PARTS = 1
EARLY = False


@triton.jit
def _dots(
    x_ptr, weight_ptr, bias_ptr, out_ptr, n, k, stride,
    BIAS: tl.constexpr, ROWS: tl.constexpr, LOADS: tl.constexpr, VEC: tl.constexpr, SPLIT: tl.constexpr,
    WHOLE: tl.constexpr, SOON: tl.constexpr,
):  # fmt: skip
    """The tile is [lanes, rows, loads, vec]: of equally dense dimensions Triton fills the first with threads first."""
    _wait(SOON)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < n
    weights = weight_ptr + row.to(tl.int64)[None, :, None, None] * stride
    at = tl.arange(0, 32)[:, None, None, None] * VEC + tl.arange(0, LOADS)[None, None, :, None] * (32 * VEC)
    at += tl.arange(0, VEC)[None, None, None, :]
    step: tl.constexpr = LOADS * 32 * VEC
    share = tl.cdiv(k, SPLIT * step) * step
    first = tl.program_id(1) * share
    last = tl.minimum(first + share, k)
    total = tl.zeros([32, ROWS], tl.float32)
    for done in tl.range(first, last, step):
        where = done + at
        inside = (where < last) | WHOLE
        w = tl.load(weights + where, mask=inside & live[None, :, None, None], other=0.0, eviction_policy="evict_first")
        # Each warp loads the row for itself, from the cache, where else it would come through shared memory.
        x_at = tl.broadcast_to(x_ptr + where, [32, ROWS, LOADS, VEC])
        x = tl.load(x_at, mask=tl.broadcast_to(inside, x_at.shape), other=0.0, eviction_policy="evict_last")
        total += tl.sum(tl.sum(w.to(tl.float32) * x.to(tl.float32), axis=3), axis=2)
    dot = tl.sum(total, axis=0)
    if SPLIT == 1:
        if BIAS:
            dot += tl.load(bias_ptr + row, mask=live, other=0.0).to(tl.float32)
        tl.store(out_ptr + row, dot, mask=live)
    else:
        tl.store(out_ptr + tl.program_id(1) * n + row, dot, mask=live)


@triton.jit
def _add_parts(
    part_ptr, bias_ptr, out_ptr, n,
    BIAS: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr, SOON: tl.constexpr,
):  # fmt: skip
    _wait(SOON)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = row < n
    total = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(part_ptr + part * n + row, mask=live, other=0.0)
    if BIAS:
        total += tl.load(bias_ptr + row, mask=live, other=0.0).to(tl.float32)
    tl.store(out_ptr + row, total, mask=live)


def _linear(x, weight, bias):
    n, k = weight.shape
    # Another number of rows is another kernel's work, a weight that is not dense in rows too.
    if x.numel() != k or weight.stride(1) != 1 or not x.is_contiguous() or n == 0 or k == 0:
        return torch.nn.functional.linear(x, weight, bias)
    out = torch.empty((*x.shape[:-1], n), dtype=x.dtype, device=x.device)
    parts = torch.empty(PARTS, n, dtype=torch.float32, device=x.device) if PARTS > 1 else out
    some = bias if bias is not None else x
    vec = 16 // x.element_size()
    launch = _launch(EARLY, x.device)
    launch |= {"SOON": bool(launch)}
    _dots[(triton.cdiv(n, OUTS), PARTS)](
        x, weight, some, parts, n, k, weight.stride(0), BIAS=bias is not None, ROWS=OUTS, LOADS=DEEP, VEC=vec,
        SPLIT=PARTS, WHOLE=k % (DEEP * 32 * vec) == 0, num_warps=WARPS, **launch,
    )  # fmt: skip
    if PARTS > 1:
        _add_parts[(triton.cdiv(n, 256),)](
            parts, some, out, n, BIAS=bias is not None, SPLIT=PARTS, BLOCK=256, num_warps=4, **launch
        )  # fmt: skip
    return out
