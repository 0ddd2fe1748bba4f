"""Memory that the judge and a worker share: a sealed anonymous file on a CPU, a mapped allocation on a CUDA device.

A device allocation travels as a file descriptor (CUDA's virtual memory management), so it crosses pid, mount and user
namespaces like the CPU's. What the worker allocates itself is read through CUDA IPC. Both through the driver's own
library: torch offers neither without a helper process of its own.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass

import torch
from torch import Tensor

from .arena import Arena

_PINNED = _POSIX_FD = _ON_DEVICE = _LAZY_PEER = 1
_READ_WRITE = 3


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocFlags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )  # fmt: skip


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", _Location), ("win32", ctypes.c_void_p),
        ("flags", _AllocFlags),
    )  # fmt: skip


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _IpcHandle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


class DeviceMemoryError(Exception):
    """A call of the CUDA driver failed; the message names it and the driver's error number."""


class _At:
    """A piece of device memory as torch takes it in, without owning it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip


def tensor_at(address: int, nbytes: int) -> Tensor:
    """Return a uint8 tensor over device memory at an address of this process (no copy)."""
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8, device="cuda")
    return torch.as_tensor(_At(address, nbytes), device="cuda")


class DeviceArena(Arena):
    """One allocation on the current CUDA device and this process's mapping of it; the interface of `Arena`."""

    def __init__(self, fd: int, nbytes: int, handle: ctypes.c_uint64 | None = None) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._handle = handle if handle is not None else _imported(fd)
        self.address = _mapped(self._handle, nbytes)

    @classmethod
    def new(cls, nbytes: int) -> DeviceArena:
        """Return a fresh allocation of at least this many bytes; raise DeviceMemoryError where there is no room."""
        properties = _properties()
        unit = ctypes.c_size_t()
        _driver("cuMemGetAllocationGranularity", ctypes.byref(unit), ctypes.byref(properties), 0)
        whole = -(-max(nbytes, 1) // unit.value) * unit.value
        handle, fd = ctypes.c_uint64(), ctypes.c_int()
        _driver("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(whole), ctypes.byref(properties), _flags(0))
        _driver("cuMemExportToShareableHandle", ctypes.byref(fd), handle, _POSIX_FD, _flags(0))
        return cls(fd.value, whole, handle)

    def bytes_at(self, at: int, nbytes: int) -> Tensor:
        # Not a slice: a storage of its own, as on a CPU, from whose start strided views count their offsets.
        return tensor_at(self.address + at, nbytes)

    def close(self) -> None:
        """Give the memory back; no tensor over it may be used any more."""
        torch.cuda.synchronize()
        _driver("cuMemUnmap", ctypes.c_uint64(self.address), ctypes.c_size_t(self.nbytes))
        _driver("cuMemAddressFree", ctypes.c_uint64(self.address), ctypes.c_size_t(self.nbytes))
        _driver("cuMemRelease", self._handle)
        os.close(self.fd)


def new_arena(device: str, nbytes: int) -> Arena:
    """Return fresh memory on a device that a worker can be given."""
    return Arena.new(nbytes) if device == "cpu" else DeviceArena.new(nbytes)


def opened_arena(device: str, fd: int, nbytes: int) -> Arena:
    """Return this process's view of memory that came as a file descriptor."""
    return Arena(fd, nbytes) if device == "cpu" else DeviceArena(fd, nbytes)


def settled(device: str) -> None:
    """Wait until all work given to the device is done; nothing on a CPU."""
    if device != "cpu":
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Segment:
    """An allocation of another process: where it lies there, its bytes, and the IPC handle as hex."""

    base: int
    nbytes: int
    handle: str


def segment_of(address: int) -> Segment:
    """Return the allocation of this process that holds a device address."""
    base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _IpcHandle()
    _driver("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    _driver("cuIpcGetMemHandle", ctypes.byref(handle), base)
    return Segment(base.value, size.value, bytes(handle).hex())


class Foreign:
    """Allocations of one other process, opened as they are met."""

    def __init__(self) -> None:
        self._opened: dict[str, int] = {}
        self._segments: list[Segment] = []

    def learn(self, segments: list[Segment]) -> None:
        """Take the other process's present allocations in; raise DeviceMemoryError for a handle that is none."""
        self._segments = segments
        for segment in segments:
            if segment.handle not in self._opened:
                raw = bytes.fromhex(segment.handle)
                if len(raw) != ctypes.sizeof(_IpcHandle):
                    raise DeviceMemoryError("a memory handle of the wrong length")
                place, handle = ctypes.c_uint64(), _IpcHandle.from_buffer_copy(raw)
                _driver("cuIpcOpenMemHandle_v2", ctypes.byref(place), handle, ctypes.c_uint(_LAZY_PEER))
                self._opened[segment.handle] = place.value

    def read(self, address: int, nbytes: int) -> Tensor:
        """Return a copy of bytes at an address of the other process; raise DeviceMemoryError where it has none."""
        for segment in self._segments:
            inside = address - segment.base
            if inside >= 0 and inside + nbytes <= segment.nbytes:
                return tensor_at(self._opened[segment.handle] + inside, nbytes).clone()
        raise DeviceMemoryError("no allocation of the worker holds that address")

    def close(self) -> None:
        for place in self._opened.values():
            _driver("cuIpcCloseMemHandle", ctypes.c_uint64(place))
        self._opened.clear()


@functools.cache
def _library() -> ctypes.CDLL:
    torch.zeros(1, device="cuda")  # the primary context, made current in this thread
    return ctypes.CDLL("libcuda.so.1")


def _driver(name: str, *args: object) -> None:
    failed = getattr(_library(), name)(*args)
    if failed:
        raise DeviceMemoryError(f"{name}: CUDA driver error {failed}")


def _flags(value: int) -> ctypes.c_ulonglong:
    return ctypes.c_ulonglong(value)


def _properties() -> _Properties:
    here = _Location(_ON_DEVICE, torch.cuda.current_device())
    return _Properties(_PINNED, _POSIX_FD, here, None, _AllocFlags())


def _imported(fd: int) -> ctypes.c_uint64:
    handle = ctypes.c_uint64()
    _driver("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), _POSIX_FD)
    return handle


def _mapped(handle: ctypes.c_uint64, nbytes: int) -> int:
    place, size = ctypes.c_uint64(), ctypes.c_size_t(nbytes)
    _driver("cuMemAddressReserve", ctypes.byref(place), size, ctypes.c_size_t(0), ctypes.c_uint64(0), _flags(0))
    _driver("cuMemMap", place, size, ctypes.c_size_t(0), handle, _flags(0))
    access = _Access(_Location(_ON_DEVICE, torch.cuda.current_device()), _READ_WRITE)
    _driver("cuMemSetAccess", place, size, ctypes.byref(access), ctypes.c_size_t(1))
    return place.value
