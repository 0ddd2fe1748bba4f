"""Tensors in shared memory: storages are laid out one after another, so strides, offsets and aliasing travel.

A layout is plain JSON: `storages` is [[at, nbytes], ...], `tensors` is [[storage, dtype, shape, stride, offset], ...].
Whoever maps a layout that the other side wrote validates it first; a worker's is untrusted.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Layout = dict[str, Any]

DTYPES: dict[str, torch.dtype] = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    )
}  # fmt: skip
_ALIGN = 128
# Values that a device reads at once, and more: a rotation by a multiple of it leaves reads whole.
_VECTOR = 64


class Arena:
    """One anonymous shared file and this process's view of it."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.view = mmap.mmap(fd, nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.view))

    @classmethod
    def new(cls, nbytes: int) -> Arena:
        """Return a fresh zeroed arena whose size nobody can change."""
        fd = os.memfd_create("hotswap", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, max(nbytes, mmap.PAGESIZE))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return cls(fd, max(nbytes, mmap.PAGESIZE))

    def bytes_at(self, at: int, nbytes: int) -> Tensor:
        """Return a uint8 tensor over a piece of this arena (no copy)."""
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self.view, dtype=torch.uint8, count=nbytes, offset=at)

    def tensors(self, layout: Layout) -> list[Tensor]:
        """Return the tensors of a layout as views of this arena."""
        bases = [self.bytes_at(at, nbytes) for at, nbytes in layout["storages"]]
        return [as_laid_out(bases[row[0]], *row[1:]) for row in layout["tensors"]]

    def close(self) -> None:
        os.close(self.fd)


def as_laid_out(base: Tensor, dtype: str, shape: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """Return the tensor that lies in `base` (uint8) as described."""
    if 0 in shape:
        return torch.empty_strided(tuple(shape), tuple(stride), dtype=DTYPES[dtype], device=base.device)
    whole = base[: base.numel() // DTYPES[dtype].itemsize * DTYPES[dtype].itemsize].view(DTYPES[dtype])
    return whole.as_strided(tuple(shape), tuple(stride), offset)


def plan(tensors: Sequence[Tensor], start: int = 0) -> tuple[Layout, int]:
    """Return the layout that holds these tensors' whole storages, shared ones once, and where it ends."""
    storages: list[list[int]] = []
    seen: dict[int, int] = {}
    rows: list[list[Any]] = []
    at = start
    for tensor in tensors:
        storage = tensor.untyped_storage()
        key = storage.data_ptr() if storage.nbytes() else -1 - len(storages)
        if key not in seen:
            seen[key] = len(storages)
            storages.append([at, storage.nbytes()])
            at += -(-storage.nbytes() // _ALIGN) * _ALIGN
        dtype = str(tensor.dtype).removeprefix("torch.")
        rows.append([seen[key], dtype, list(tensor.shape), list(tensor.stride()), tensor.storage_offset()])
    return {"storages": storages, "tensors": rows}, at


def storage_bytes(tensor: Tensor) -> Tensor:
    """Return a tensor's whole storage as uint8 (no copy)."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def write(arena: Arena, layout: Layout, tensors: Sequence[Tensor]) -> None:
    """Copy the tensors' storages to where the layout puts them; they are there when this returns."""
    done = set()
    for tensor, row in zip(tensors, layout["tensors"], strict=True):
        if row[0] not in done:
            at, nbytes = layout["storages"][row[0]]
            arena.bytes_at(at, nbytes).copy_(storage_bytes(tensor))
            done.add(row[0])
    if any(t.is_cuda for t in tensors):
        torch.cuda.synchronize()


def changed(arena: Arena, layout: Layout, tensors: Sequence[Tensor]) -> list[int]:
    """Return the positions of tensors whose storage in the arena no longer holds what `write` put there."""
    return [
        i
        for i, (tensor, row) in enumerate(zip(tensors, layout["tensors"], strict=True))
        if not torch.equal(arena.bytes_at(*layout["storages"][row[0]]), storage_bytes(tensor))
    ]


def refill(room: Tensor, fresh: Tensor, scaled: str | None, by: float) -> None:
    """Copy one storage's bytes; `scaled` names the dtype whose values are multiplied by `by`, and rotated, on the way.

    Were they multiplied only, an answer could be remembered by what a factor leaves alone: the ratio of two values.
    """
    if scaled is None:
        room.copy_(fresh)
        return
    values, out = fresh.view(DTYPES[scaled]), room.view(DTYPES[scaled])
    first = rotation(by, values.numel())
    rest = values.numel() - first
    torch.mul(values[first:], by, out=out[:rest])
    torch.mul(values[:first], by, out=out[rest:])


def rotation(by: float, count: int) -> int:
    """Return by how many of `count` values they are rotated, drawn from the factor; of many, by whole vectors."""
    first = int(by * (1 << 40)) % max(count, 1)
    return first - first % aligned(count)


def aligned(count: int) -> int:
    """Return what the rotation of so many values is a multiple of."""
    return _VECTOR if count >= 64 * _VECTOR else 1


def refill_many(
    rooms: Tensor, sources: Sequence[Tensor], scaled: str | None, contents: Sequence[tuple[int, float]]
) -> None:
    """Do what `refill` does to every row of `rooms`, bit for bit, in one launch. Devices only.

    sources: bytes of each; contents: of each row, which source (from the end if negative) and its factor.
    """
    from .fill_kernel import fill_rows  # Triton is there where a GPU is

    nbytes = rooms.shape[1]
    dtype = DTYPES[scaled] if scaled is not None else torch.int64 if nbytes % 8 == 0 else torch.uint8
    values, which = torch.stack([s.view(dtype) for s in sources]), [w % len(sources) for w, _ in contents]
    count = values.shape[1]
    by = [b for _, b in contents] if scaled is not None else None
    first = [rotation(b, count) for b in by] if by is not None else [0] * len(contents)
    fill_rows(rooms.view(dtype), values, which, first, by, aligned(count))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Reweighting:
    """Other weights, in part: the `share` of each tensor's values that begins at `start` (0 to 1), times `by`."""

    by: float
    start: float
    share: float


def reweigh(room: Tensor, fresh: Tensor, dtype: str | None, change: Reweighting | None) -> None:
    """Copy a weight's bytes and change them; `dtype` is that of its values, None where they are no plain numbers."""
    room.copy_(fresh)
    if change is not None and dtype is not None:
        values = room.view(DTYPES[dtype])
        many = max(1, int(change.share * values.numel()))
        first = int(change.start * (values.numel() - many))
        values[first : first + many].mul_(change.by)


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many elements lie between the first and the last of a strided tensor, both included."""
    return 0 if 0 in shape else 1 + sum((s - 1) * t for s, t in zip(shape, stride, strict=True))


def dense_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose dims lie in memory in `order`, outermost first (None: as they are)."""
    strides = [0] * len(shape)
    step = 1
    for dim in reversed(order if order is not None else range(len(shape))):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def with_weights(tensors: Sequence[Tensor], donor: Sequence[Tensor], is_weight: Sequence[bool]) -> list[Tensor]:
    """Return `tensors` with the weights of `donor`."""
    return [d if w else t for t, d, w in zip(tensors, donor, is_weight, strict=True)]
