"""Up to four linears of one input as one matmul that writes each of them where it belongs, all outputs dense.

The outputs lie one after another in one allocation; a tile of columns belongs to one of them. Outputs of one width are
the rows of one matrix, which a descriptor stores in bulk where no tile of rows reaches from one output into the next.
"""

# mypy: ignore-errors
# ruff: noqa: N803
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .early_kernel import _launch, _wait
from .tile_kernel import _described, _pieces, _place, _processors

STATIC_WEIGHTS = True

# Knobs, replaced by the proposer. GROUP: tiles down before one across, so that both inputs stay in the cache. PARTS:
# pieces in which a tile is stored. FLAT: the loads of the next tile begin before this one is stored. EACH: programs a
# multiprocessor. EARLY: the kernel is launched before the one it follows has ended, and waits for it on the device.
ROWS = 128
COLUMNS = 256
DEEP = 64
WARPS = 8
STAGES = 4
GROUP = 8
PARTS = 2
FLAT = True
EACH = 1
EARLY = False


@triton.jit
def _pick(number, a, b, c, d):
    return tl.where(number == 0, a, tl.where(number == 1, b, tl.where(number == 2, c, d)))


@triton.jit
def _tiles(
    x_desc, weight_desc, out_desc, bias_ptr, out_ptr, m, k, n0, n1, n2, n3, programs,
    BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DOWN: tl.constexpr, DEPTH: tl.constexpr,
    PIECES: tl.constexpr, BULK: tl.constexpr, FLATTEN: tl.constexpr, SOON: tl.constexpr,
):  # fmt: skip
    _wait(SOON)
    t0 = tl.cdiv(n0, BN)
    t1 = t0 + tl.cdiv(n1, BN)
    t2 = t1 + tl.cdiv(n2, BN)
    across = t2 + tl.cdiv(n3, BN)
    down = tl.cdiv(m, BM)
    for tile in tl.range(tl.program_id(0), down * across, programs, flatten=FLATTEN):
        number, place = _place(tile, down, across, DOWN)
        first_row = number * BM
        which = (place >= t0).to(tl.int32) + (place >= t1).to(tl.int32) + (place >= t2).to(tl.int32)
        before = _pick(which, 0, n0, n0 + n1, n0 + n1 + n2)
        width = _pick(which, n0, n1, n2, n3)
        first_column = (place - _pick(which, 0, t0, t1, t2)) * BN
        acc = tl.zeros([BM, BN], tl.float32)
        for step in tl.range(0, k, BK, num_stages=DEPTH):
            x = x_desc.load([first_row, step])
            weight = weight_desc.load([before + first_column, step])
            acc = tl.dot(x, weight.T, acc)
        row = first_row + tl.arange(0, BM)
        parts = _pieces(acc, PIECES)
        for part in tl.static_range(PIECES):
            made = parts[part]
            column = first_column + part * (BN // PIECES) + tl.arange(0, BN // PIECES)
            if BIAS:
                made += tl.load(bias_ptr + before + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
            made = made.to(out_ptr.dtype.element_ty)
            if BULK:
                out_desc.store([which * m + first_row, first_column + part * (BN // PIECES)], made)
            else:
                at = row.to(tl.int64)[:, None] * width + column[None, :]
                inside = (row < m)[:, None] & (column < width)[None, :]
                tl.store(out_ptr + before.to(tl.int64) * m + at, made, mask=inside)


def _packed(weights, biases):
    weight = torch.cat(weights).detach()
    more = -weight.shape[1] % 8  # a descriptor's rows start at 16-byte borders
    weight = torch.nn.functional.pad(weight, (0, more)) if more else weight
    return weight, torch.cat(biases).detach() if biases else None


def _linears(x, sizes, packed):
    weight, bias = packed
    k = x.shape[-1]
    flat = x.reshape(-1, k)
    m, more = flat.shape[0], weight.shape[1] - k
    buffer = torch.empty(m * sum(sizes), dtype=x.dtype, device=x.device)
    outs = [part.view(*x.shape[:-1], n) for part, n in zip(buffer.split([m * n for n in sizes]), sizes, strict=True)]
    if buffer.numel() == 0:
        return tuple(outs)
    flat = torch.nn.functional.pad(flat, (0, more)) if more else flat
    flat = _described(flat)
    wanted = triton.cdiv(m, ROWS) * sum(triton.cdiv(n, COLUMNS) for n in sizes)
    programs = min(wanted, EACH * _processors(x.device))
    widths = [*sizes, 0, 0, 0][:4]
    bulk = len(set(sizes)) == 1 and sizes[0] * x.element_size() % 16 == 0 and m % ROWS == 0
    launch = _launch(EARLY, x.device)
    written = buffer.view(-1, sizes[0]) if bulk else flat  # a descriptor that is not used has to be one all the same
    _tiles[(programs,)](
        TensorDescriptor.from_tensor(flat, [ROWS, DEEP]), TensorDescriptor.from_tensor(weight, [COLUMNS, DEEP]),
        TensorDescriptor.from_tensor(written, [ROWS, COLUMNS // PARTS]),
        bias if bias is not None else buffer, buffer, m, flat.shape[1], *widths, programs,
        BIAS=bias is not None, BM=ROWS, BN=COLUMNS, BK=DEEP, DOWN=GROUP, DEPTH=STAGES,
        PIECES=PARTS, BULK=bulk, FLATTEN=FLAT, SOON=bool(launch), num_warps=WARPS, **launch,
    )  # fmt: skip
    return tuple(outs)
