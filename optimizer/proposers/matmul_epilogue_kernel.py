"""A linear with what follows it done on the accumulator: a persistent grid of tiles, inputs by tensor descriptors."""

# mypy: ignore-errors
# ruff: noqa: N803
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# Knobs, replaced by the proposer. GROUP: tiles down before one across, so that both inputs stay in the cache.
ROWS = 128
COLUMNS = 256
DEEP = 64
WARPS = 8
STAGES = 3
GROUP = 8
# What the reference does: the dtype of its result, and which of the extra inputs are one value a column.
OUT = torch.float16
ALONG = ()


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _gelu_tanh(x):
    return 0.5 * x * (1 + _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


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
    x_desc, weight_desc, out_ptr, e0, e1, e2, e3, m, n, k, programs,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DOWN: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    down, across = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), down * across, programs):
        band = tile // (DOWN * across)
        high = tl.minimum(down - band * DOWN, DOWN)
        within = tile % (DOWN * across)
        first_row = (band * DOWN + within % high) * BM
        first_column = (within // high) * BN
        acc = tl.zeros([BM, BN], tl.float32)
        for step in tl.range(0, tl.cdiv(k, BK), num_stages=DEPTH):
            x = x_desc.load([first_row, step * BK])
            weight = weight_desc.load([first_column, step * BK])
            acc = tl.dot(x, weight.T, acc)
        row = first_row + tl.arange(0, BM)
        column = first_column + tl.arange(0, BN)
        inside = (row < m)[:, None] & (column < n)[None, :]
        made = _epilogue(acc, e0, e1, e2, e3, row, column, n, inside)
        at = row.to(tl.int64)[:, None] * n + column[None, :]
        tl.store(out_ptr + at, made.to(out_ptr.dtype.element_ty), mask=inside)


def _linear(x, weight, *extra):
    n, k = weight.shape
    flat = x.reshape(-1, k)
    out = torch.empty((*x.shape[:-1], n), dtype=OUT, device=x.device)
    if out.numel() == 0:
        return out
    if k % 8 or k == 0:  # a descriptor's rows start at 16-byte borders
        flat, weight = (torch.nn.functional.pad(t, (0, 8 - k % 8)) for t in (flat, weight))
    flat, weight = (t if _described(t) else t.contiguous().clone() for t in (flat, weight))
    extra = [
        e.contiguous() if along else e.expand(out.shape).contiguous() for e, along in zip(extra, ALONG, strict=True)
    ]
    extra += [out] * (4 - len(extra))
    m = flat.shape[0]
    wanted = triton.cdiv(m, ROWS) * triton.cdiv(n, COLUMNS)
    programs = min(wanted, _processors(x.device))
    _tiles[(programs,)](
        TensorDescriptor.from_tensor(flat, [ROWS, DEEP]), TensorDescriptor.from_tensor(weight, [COLUMNS, DEEP]),
        out, *extra, m, n, flat.shape[1], programs,
        BM=ROWS, BN=COLUMNS, BK=DEEP, DOWN=GROUP, DEPTH=STAGES, num_warps=WARPS,
    )  # fmt: skip
    return out


def _described(t):
    return t.stride(1) == 1 and t.stride(0) * t.element_size() % 16 == 0 and t.data_ptr() % 16 == 0


def _processors(device):
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count
