"""A linear of one row: every program dots a few rows of the weight with the row, in 16-byte loads, fp32 accumulated.

Where the weight has too few rows for the device, several programs share one and a second stage adds their parts in a
fixed order.
"""

# mypy: ignore-errors
# ruff: noqa: N803
import torch
import triton
import triton.language as tl

# Knobs, replaced by the proposer. OUTS: rows of the weight a program. PARTS: programs that share them.
WARPS = 4
OUTS = 4
TILES = 2
PARTS = 1


@triton.jit
def _dots(
    x_ptr, weight_ptr, bias_ptr, out_ptr, n, k, stride,
    BIAS: tl.constexpr, ROWS: tl.constexpr, DEEP: tl.constexpr, LANES: tl.constexpr, VEC: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < n
    weights = weight_ptr + row.to(tl.int64)[:, None, None, None] * stride
    at = tl.arange(0, DEEP)[None, :, None, None] * (LANES * VEC) + tl.arange(0, LANES)[None, None, :, None] * VEC
    at += tl.arange(0, VEC)[None, None, None, :]
    step: tl.constexpr = DEEP * LANES * VEC
    share = tl.cdiv(k, SPLIT * step) * step
    first = tl.program_id(1) * share
    last = tl.minimum(first + share, k)
    total = tl.zeros([ROWS, LANES], tl.float32)
    for done in tl.range(first, last, step):
        where = done + at
        inside = where < last
        w = tl.load(weights + where, mask=inside & live[:, None, None, None], other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + where, mask=inside, other=0.0, eviction_policy="evict_last")
        total += tl.sum(tl.sum(w.to(tl.float32) * x.to(tl.float32), axis=3), axis=1)
    dot = tl.sum(total, axis=1)
    if SPLIT == 1:
        if BIAS:
            dot += tl.load(bias_ptr + row, mask=live, other=0.0).to(tl.float32)
        tl.store(out_ptr + row, dot, mask=live)
    else:
        tl.store(out_ptr + tl.program_id(1) * n + row, dot, mask=live)


@triton.jit
def _add_parts(
    part_ptr, bias_ptr, out_ptr, n, BIAS: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
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
    _dots[(triton.cdiv(n, OUTS), PARTS)](
        x, weight, some, parts, n, k, weight.stride(0),
        BIAS=bias is not None, ROWS=OUTS, DEEP=TILES, LANES=32 * WARPS, VEC=16 // x.element_size(), SPLIT=PARTS,
        num_warps=WARPS,
    )  # fmt: skip
    if PARTS > 1:
        _add_parts[(triton.cdiv(n, 256),)](
            parts, some, out, n, BIAS=bias is not None, SPLIT=PARTS, BLOCK=256, num_warps=4
        )  # fmt: skip
    return out
