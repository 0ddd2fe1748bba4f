"""What kernels that work on tiles of a matrix share: its place, its columns in pieces, what a descriptor shows."""

# mypy: ignore-errors
# ruff: noqa: N803, RET505
import torch
import triton
import triton.language as tl


@triton.jit
def _place(tile, down, across, DOWN: tl.constexpr):
    """Return the row and the column of a tile: DOWN tiles down before one across, so that inputs stay in the cache."""
    band = tile // (DOWN * across)
    high = tl.minimum(down - band * DOWN, DOWN)
    within = tile % (DOWN * across)
    return band * DOWN + within % high, within // high


@triton.jit
def _pieces(acc, PIECES: tl.constexpr):
    """Return the accumulator's columns in one or two pieces of equal width."""
    if PIECES == 1:
        return (acc,)
    else:
        return acc.reshape(acc.shape[0], 2, acc.shape[1] // 2).permute(0, 2, 1).split()


def _described(t):
    """Return a matrix as a tensor descriptor can show it: rows dense, each from a border of 16 bytes."""
    fits = t.stride(1) == 1 and t.stride(0) * t.element_size() % 16 == 0 and t.data_ptr() % 16 == 0
    return t if fits else t.contiguous().clone()


def _processors(device):
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count
