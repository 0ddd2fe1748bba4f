"""A linear with what follows it done on the accumulator: a persistent grid of tiles, all by tensor descriptors.

Rows of an odd width start at borders that differ from row to row, but rows eight apart start alike. A tile of such rows
is a matrix whose rows are eight apart, and its columns begin where all of them have a border of 16 bytes.
"""

# mypy: ignore-errors
# ruff: noqa: N803
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .tile_kernel import _described, _pieces, _place, _processors

# Knobs, replaced by the proposer. GROUP: tiles down before one across, so that both inputs stay in the cache. PARTS:
# pieces in which a tile is stored. FLAT: the loads of the next tile begin before this one is stored. EACH:
# programs a multiprocessor.
ROWS = 128
COLUMNS = 256
DEEP = 64
WARPS = 8
STAGES = 3
GROUP = 8
PARTS = 2
FLAT = True
EACH = 1
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
    PIECES: tl.constexpr, APART: tl.constexpr, BULK: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    """APART: distance of a tile's rows. BULK: out is stored by its descriptor.

    Where rows are apart the columns behind a tile's last are those of the next row, which no descriptor cuts off: the
    outermost tiles move inwards instead, and what two of them cover both write alike.
    """
    down, across = tl.cdiv(m, BM * APART) * APART, tl.cdiv(n + APART - 1, BN)
    for tile in tl.range(tl.program_id(0), down * across, programs, flatten=FLATTEN):
        place, which = _place(tile, down, across, DOWN)
        offset = place % APART
        first_row = place // APART * BM
        first_column = which * BN
        if APART > 1:
            first_column = tl.minimum(tl.maximum(first_column - offset * n % APART, 0), n - BN)
        acc = tl.zeros([BM, BN], tl.float32)
        for step in tl.range(0, k, BK, num_stages=DEPTH):
            x = x_desc.load([first_row, offset * k + step])
            weight = weight_desc.load([first_column, step])
            acc = tl.dot(x, weight.T, acc)
        row = (first_row + tl.arange(0, BM)) * APART + offset
        parts = _pieces(acc, PIECES)
        for part in tl.static_range(PIECES):
            begin = first_column + part * (BN // PIECES)
            column = begin + tl.arange(0, BN // PIECES)
            inside = (row < m)[:, None] & (column < n)[None, :]
            made = _epilogue(parts[part], e0, e1, e2, e3, row, column, n, inside).to(out_ptr.dtype.element_ty)
            start = offset * n + begin
            if BULK and APART == 1:
                out_desc.store([first_row, start], made)
            elif BULK:
                # The outermost tiles, which have moved inwards, begin off a 16-byte border: no bulk store does that.
                if start % APART == 0:
                    out_desc.store([first_row, start], made)
                else:
                    tl.store(out_ptr + row.to(tl.int64)[:, None] * n + column[None, :], made, mask=inside)
            else:
                tl.store(out_ptr + row.to(tl.int64)[:, None] * n + column[None, :], made, mask=inside)


def _linear(x, weight, *extra):
    n, k = weight.shape
    flat = x.reshape(-1, k)
    m = flat.shape[0]
    vec = 16 // OUT.itemsize
    # Behind a row of x lies the next one where they are apart: no step may reach there.
    apart = vec if n % vec and n >= COLUMNS and k and k % DEEP == 0 else 1
    bulk = apart > 1 or n % vec == 0
    more = -m % apart
    buffer = torch.empty((m + more) * n, dtype=OUT, device=x.device)
    out = buffer[: m * n].view(*x.shape[:-1], n)
    if out.numel() == 0:
        return out
    if k % 8 or k == 0:  # a descriptor's rows start at 16-byte borders
        flat, weight = (torch.nn.functional.pad(t, (0, 8 - k % 8)) for t in (flat, weight))
    flat = torch.nn.functional.pad(flat, (0, 0, 0, more)) if more else flat
    flat, weight = _described(flat), _described(weight)
    flat = flat.contiguous().view(-1, apart * flat.shape[1]) if apart > 1 else flat
    extra = [
        e.contiguous() if along else e.expand(out.shape).contiguous() for e, along in zip(extra, ALONG, strict=True)
    ]
    extra += [out] * (4 - len(extra))
    wanted = triton.cdiv(m, ROWS * apart) * apart * triton.cdiv(n + apart - 1, COLUMNS)
    programs = min(wanted, EACH * _processors(x.device))
    written = buffer.view(-1, apart * n) if bulk else flat
    _tiles[(programs,)](
        TensorDescriptor.from_tensor(flat, [ROWS, DEEP]), TensorDescriptor.from_tensor(weight, [COLUMNS, DEEP]),
        TensorDescriptor.from_tensor(written, [ROWS, COLUMNS // PARTS]), out, *extra, m, n, weight.shape[1], programs,
        BM=ROWS, BN=COLUMNS, BK=DEEP, DOWN=GROUP, DEPTH=STAGES, PIECES=PARTS, APART=apart, BULK=bulk,
        FLATTEN=FLAT, num_warps=WARPS,
    )  # fmt: skip
    return out
