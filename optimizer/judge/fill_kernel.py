"""Fill the input sets of a device in one launch: each row of memory from one of a few sources, rotated and scaled.

Gathering rows and then scaling them took 18 ms for the 768 sets of a sprint of 3.7 ms (H200); memory allows 1.5.
"""

# mypy: ignore-errors
# ruff: noqa: N803
import torch
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def fill(
    rooms, sources, which, first, by, count, room_stride, source_stride,
    SCALED: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    begin = tl.load(which + row) * source_stride + tl.multiple_of(tl.load(first + row), ALIGNED)
    value = tl.load(sources + begin + at, mask=there)
    if SCALED:
        factor = tl.load(by + row)
        value = (value.to(factor.dtype) * factor).to(rooms.dtype.element_ty)
    tl.store(rooms + row * room_stride + at, value, mask=there)


def fill_rows(rooms, sources, which, first, by, aligned):
    """Write row n of `rooms` from source `which[n]`, begun at value `first[n]`, times `by[n]` (None: as it is).

    rooms: (rows, values), dense rows; sources: (sources, values). aligned: what every `first` is a multiple of.
    A factor is applied as torch does: in fp32 for values of at most 32 bits, rounded once.
    """
    rows, count = rooms.shape
    if not rows or not count:
        return
    # A rotated row is a window of the row written twice.
    twice = torch.cat([sources, sources], 1)
    wide = torch.promote_types(rooms.dtype, torch.float32) if by is not None else torch.float32
    device = rooms.device
    factors = torch.tensor(by if by is not None else [1.0], dtype=torch.float64, device=device).to(wide)
    fill[(triton.cdiv(count, BLOCK), rows)](
        rooms, twice, torch.tensor(which, device=device), torch.tensor(first, device=device), factors,
        count, rooms.stride(0), twice.stride(0), SCALED=by is not None, ALIGNED=aligned, BLOCK=BLOCK,
    )  # fmt: skip
