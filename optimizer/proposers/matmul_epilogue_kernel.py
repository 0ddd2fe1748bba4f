"""A linear with what follows it done on the accumulator: a persistent grid of tiles, inputs by tensor descriptors.

Rows of an odd width start at borders that differ from row to row, but rows eight apart start alike. A tile of such rows
is a matrix whose rows are eight apart; it holds what lies between the 16-byte borders of its rows, and is stored in
whole vectors. What lies outside them, at most seven values at either end of a row, is the work of a small kernel.
"""

# mypy: ignore-errors
# ruff: noqa: N803
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .early_kernel import _launch, _wait
from .tile_kernel import _described, _pieces, _place, _processors

# Knobs, replaced by the proposer. GROUP: tiles down before one across, so that both inputs stay in the cache. PARTS:
# pieces in which a tile is stored. FLAT: the loads of the next tile begin before this one is stored. EACH:
# programs a multiprocessor. EARLY: kernels are launched before what they follow has ended, and wait on the device.
ROWS = 128
COLUMNS = 256
DEEP = 64
WARPS = 8
STAGES = 3
GROUP = 8
PARTS = 2
FLAT = True
EACH = 1
EARLY = False
# What the reference does: the dtype of its result, and which of the extra inputs are one value a column.
OUT = torch.float16
ALONG = ()


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _gelu_tanh(x):
    return x * tl.sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))  # (1 + tanh(u)) / 2 is sigmoid(2 u)


@triton.jit
def _gelu(x):
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _along(pointer, column, n):
    return tl.load(pointer + column, mask=column < n, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _whole(pointer, row, column, n, inside):
    at = row.to(tl.int64)[:, None] * n + column[None, :]
    return tl.load(pointer + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _epilogue(acc, e0, e1, e2, e3, row, column, n, inside):
    return acc


@triton.jit
def _tiles(
    x_desc, weight_desc, out_desc, out_ptr, e0, e1, e2, e3, m, n, k, programs,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DOWN: tl.constexpr, DEPTH: tl.constexpr,
    PIECES: tl.constexpr, APART: tl.constexpr, BULK: tl.constexpr, FLATTEN: tl.constexpr, SOON: tl.constexpr,
):  # fmt: skip
    """APART: distance of a tile's rows. BULK: out is stored by its descriptor. A branch here would end FLATTEN."""
    _wait(SOON)
    down, across = tl.cdiv(m, BM * APART) * APART, tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), down * across, programs, flatten=FLATTEN):
        place, which = _place(tile, down, across, DOWN)
        offset = place % APART
        first_row = place // APART * BM
        border = (offset * n + APART - 1) // APART * APART
        skipped = border - offset * n
        acc = tl.zeros([BM, BN], tl.float32)
        for step in tl.range(0, k, BK, num_stages=DEPTH):
            x = x_desc.load([first_row, offset * k + step])
            weight = weight_desc.load([skipped + which * BN, step])
            acc = tl.dot(x, weight.T, acc)
        number = first_row + tl.arange(0, BM)
        row = number * APART + offset
        parts = _pieces(acc, PIECES)
        for part in tl.static_range(PIECES):
            begin = which * BN + part * (BN // PIECES)
            behind = begin + tl.arange(0, BN // PIECES)
            column = skipped + behind
            inside = (row < m)[:, None] & (behind // APART < (n - skipped) // APART)[None, :]
            made = _epilogue(parts[part], e0, e1, e2, e3, row, column, n, inside).to(out_ptr.dtype.element_ty)
            if BULK:
                out_desc.store([first_row, begin], made)
            else:
                at = number.to(tl.int64)[:, None] * (APART * n) + (border + behind)[None, :]
                tl.store(out_ptr + at, made, mask=inside)


@triton.jit
def _rims(
    x_ptr, weight_ptr, out_ptr, e0, e1, e2, e3, m, n, k, stride,
    BM: tl.constexpr, BK: tl.constexpr, APART: tl.constexpr, SOON: tl.constexpr,
):  # fmt: skip
    """Compute what lies before the first 16-byte border of each row and behind its last."""
    _wait(SOON)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    lane = tl.arange(0, 16)
    column = tl.where(lane < 8, lane, n - 16 + lane)
    acc = tl.zeros([BM, 16], tl.float32)
    for step in tl.range(0, k, BK):
        inner = step + tl.arange(0, BK)
        x = tl.load(x_ptr + row.to(tl.int64)[:, None] * k + inner[None, :], mask=(row < m)[:, None], other=0.0)
        weight = tl.load(weight_ptr + column.to(tl.int64)[None, :] * stride + inner[:, None])
        acc = tl.dot(x, weight, acc)
    skipped = (APART - row % APART * n % APART) % APART
    last = n - (n - skipped) % APART
    outside = (column[None, :] < skipped[:, None]) | (column[None, :] >= last[:, None])
    inside = (row < m)[:, None] & outside
    made = _epilogue(acc, e0, e1, e2, e3, row, column, n, inside).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row.to(tl.int64)[:, None] * n + column[None, :], made, mask=inside)


def _linear(x, weight, *extra):
    n, k = weight.shape
    flat = x.reshape(-1, k)
    m = flat.shape[0]
    out = torch.empty((*x.shape[:-1], n), dtype=OUT, device=x.device)
    if out.numel() == 0:
        return out
    vec = 16 // OUT.itemsize
    # Behind a row of x lies the next one where they are apart: no step may reach there.
    apart = vec if n % vec and n >= COLUMNS and k and k % DEEP == 0 else 1
    if k % 8 or k == 0:  # a descriptor's rows start at 16-byte borders
        flat, weight = (torch.nn.functional.pad(t, (0, 8 - k % 8)) for t in (flat, weight))
    flat = torch.nn.functional.pad(flat, (0, 0, 0, -m % apart)) if m % apart else flat
    flat, weight = _described(flat), _described(weight)
    flat = flat.contiguous().view(-1, apart * flat.shape[1]) if apart > 1 else flat
    extra = [
        e.contiguous() if along else e.expand(out.shape).contiguous() for e, along in zip(extra, ALONG, strict=True)
    ]
    extra += [out] * (4 - len(extra))
    k = weight.shape[1]
    wanted = triton.cdiv(m, ROWS * apart) * apart * triton.cdiv(n, COLUMNS)
    launch = _launch(EARLY, x.device)
    programs = min(wanted, EACH * _processors(x.device))
    bulk = n % vec == 0
    written = out.view(m, n) if bulk else flat  # a descriptor that is not used has to be one all the same
    _tiles[(programs,)](
        TensorDescriptor.from_tensor(flat, [ROWS, DEEP]), TensorDescriptor.from_tensor(weight, [COLUMNS, DEEP]),
        TensorDescriptor.from_tensor(written, [ROWS, COLUMNS // PARTS]), out, *extra, m, n, k, programs,
        BM=ROWS, BN=COLUMNS, BK=DEEP, DOWN=GROUP, DEPTH=STAGES, PIECES=PARTS, APART=apart, BULK=bulk,
        FLATTEN=FLAT, SOON=bool(launch), num_warps=WARPS, **launch,
    )  # fmt: skip
    if apart > 1:
        _rims[(triton.cdiv(m, 64),)](
            flat, weight, out, *extra, m, n, k, weight.stride(0), BM=64, BK=DEEP, APART=apart, SOON=bool(launch),
            num_warps=4, **launch,
        )  # fmt: skip
    return out
