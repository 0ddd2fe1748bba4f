"""Cross entropy of a linear's outputs, which are never written: every tile of them leaves a maximum and a sum a row.

A second kernel joins the tiles of a row in a fixed order, a third adds the rows up.
"""

# mypy: ignore-errors
# ruff: noqa: N803
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .loss_kernel import _reduced
from .tile_kernel import _described, _place, _processors

# Knobs, replaced by the proposer. GROUP: tiles down before one across, so that both inputs stay in the cache. FLAT: the
# loads of the next tile begin before this one is reduced. EACH: programs a multiprocessor.
ROWS = 128
COLUMNS = 256
DEEP = 64
WARPS = 8
STAGES = 4
GROUP = 8
FLAT = True
EACH = 1
# What the reference does.
IGNORE = -100
REDUCTION = "mean"
OUT = torch.float32

LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _tiles(
    x_desc, weight_desc, bias_ptr, target_ptr, peak_ptr, total_ptr, picked_ptr, m, n, k, programs,
    BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DOWN: tl.constexpr, DEPTH: tl.constexpr,
    FLATTEN: tl.constexpr,
):  # fmt: skip
    down, across = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), down * across, programs, flatten=FLATTEN):
        place, which = _place(tile, down, across, DOWN)
        acc = tl.zeros([BM, BN], tl.float32)
        for step in tl.range(0, k, BK, num_stages=DEPTH):
            x = x_desc.load([place * BM, step])
            weight = weight_desc.load([which * BN, step])
            acc = tl.dot(x, weight.T, acc)
        row = place * BM + tl.arange(0, BM)
        column = which * BN + tl.arange(0, BN)
        if BIAS:
            acc += tl.load(bias_ptr + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
        acc = tl.where((column < n)[None, :], acc, -float("inf"))
        peak = tl.maximum(tl.max(acc, axis=1), LOWEST)
        total = tl.sum(tl.exp(acc - peak[:, None]), axis=1)
        target = tl.load(target_ptr + row, mask=row < m, other=-1)
        picked = tl.sum(tl.where(column[None, :] == target[:, None], acc, 0.0), axis=1)
        at = which.to(tl.int64) * m + row
        tl.store(peak_ptr + at, peak, mask=row < m)
        tl.store(total_ptr + at, total, mask=row < m)
        here = (target >= which * BN) & (target < tl.minimum(which * BN + BN, n))
        tl.store(picked_ptr + row, picked, mask=here & (row < m))


@triton.jit
def _join(
    target_ptr, peak_ptr, total_ptr, picked_ptr, loss_ptr, m, n, tiles,
    IGNORED: tl.constexpr, BM: tl.constexpr, MANY: tl.constexpr,
):  # fmt: skip
    """Join the tiles of some rows: MANY of them at a time, each lane its own maximum and sum."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    peak = tl.full([MANY, BM], LOWEST, tl.float32)
    total = tl.zeros([MANY, BM], tl.float32)
    for done in range(0, tiles, MANY):
        tile = done + tl.arange(0, MANY)
        at = tile.to(tl.int64)[:, None] * m + row[None, :]
        inside = (tile < tiles)[:, None] & (row < m)[None, :]
        one = tl.load(peak_ptr + at, mask=inside, other=LOWEST)
        new = tl.maximum(peak, one)
        total = total * tl.exp(peak - new) + tl.load(total_ptr + at, mask=inside, other=0.0) * tl.exp(one - new)
        peak = new
    most = tl.max(peak, axis=0)
    whole = tl.where(row < m, tl.sum(total * tl.exp(peak - most[None, :]), axis=0), 1.0)
    target = tl.load(target_ptr + row, mask=row < m, other=IGNORED)
    inside = (row < m) & (target >= 0) & (target < n)
    loss = most + tl.log(whole) - tl.load(picked_ptr + row, mask=inside, other=float("nan"))
    tl.store(loss_ptr + row, tl.where(target == IGNORED, 0.0, loss), mask=row < m)


def _linear_cross_entropy(x, weight, bias, target):
    n, k = weight.shape
    flat, target = x.reshape(-1, k), target.reshape(-1).contiguous()
    m = target.shape[0]
    alone = REDUCTION == "none"
    loss = torch.empty(m, dtype=OUT if alone else torch.float32, device=x.device)
    if m:
        if k % 8:  # a descriptor's rows start at 16-byte borders
            flat, weight = (torch.nn.functional.pad(t, (0, 8 - k % 8)) for t in (flat, weight))
        flat, weight = _described(flat), _described(weight)
        across = triton.cdiv(n, COLUMNS)
        peak, total = torch.empty(2, across, m, device=x.device)
        picked = torch.empty(m, device=x.device)
        programs = min(triton.cdiv(m, ROWS) * across, EACH * _processors(x.device))
        _tiles[(programs,)](
            TensorDescriptor.from_tensor(flat, [ROWS, DEEP]), TensorDescriptor.from_tensor(weight, [COLUMNS, DEEP]),
            bias if bias is not None else flat, target, peak, total, picked, m, n, weight.shape[1], programs,
            BIAS=bias is not None, BM=ROWS, BN=COLUMNS, BK=DEEP, DOWN=GROUP, DEPTH=STAGES, FLATTEN=FLAT,
            num_warps=WARPS,
        )  # fmt: skip
        _join[(triton.cdiv(m, 32),)](
            target, peak, total, picked, loss, m, n, across, IGNORED=IGNORE, BM=32, MANY=32, num_warps=4
        )  # fmt: skip
    return loss if alone else _reduced(loss, target, IGNORE, REDUCTION == "mean", OUT, early=False)
