"""Keep what a kernel's `prepare` made of a place's weights, and notice when the weights change.

A weight has changed when its pointer, its version counter or a sample of its bytes has: in-place ops bump the version,
`.data` swaps move the pointer, and writes behind autograd's back (NumPy views, `.data.copy_`) show in the sample
unless they miss it. Weights of a device other than the CPU are watched by pointer and version only.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_SAMPLES = 8

_Probe = ctypes.c_uint64 | ctypes.c_ubyte


@dataclass
class _Entry:
    state: tuple[tuple[int, int], ...]
    probes: tuple[_Probe, ...]
    sample: list[int]
    packed: Any
    watchers: tuple[weakref.ref[torch.Tensor], ...]


class PackedWeights:
    """Packed weights by place: the same weights, the same packing until they change. repacked: how often they had."""

    def __init__(self, prepare: Callable[..., Any], weights: Sequence[int]) -> None:
        self._prepare = prepare
        self._positions = tuple(weights)
        self._entries: dict[tuple[int, ...], _Entry] = {}
        self.repacked = 0

    def of(self, inputs: tuple[torch.Tensor, ...]) -> Any:
        """Return the packing of the weights among `inputs`, made anew where they are not what they were."""
        weights = [inputs[i] for i in self._positions]
        key = tuple(map(id, weights))
        entry = self._entries.get(key)
        state = tuple((w.data_ptr(), w._version) for w in weights)
        if entry is not None:
            if entry.state == state and [probe.value for probe in entry.probes] == entry.sample:
                return entry.packed
            self.repacked += 1
        return self._pack(key, weights, state, inputs).packed

    def _pack(
        self,
        key: tuple[int, ...],
        weights: list[torch.Tensor],
        state: tuple[tuple[int, int], ...],
        inputs: tuple[torch.Tensor, ...],
    ) -> _Entry:
        probes = tuple(probe for w in weights for probe in _probes(w))
        # The sample is taken first: a write while `prepare` runs is then seen at the next call.
        sample = [probe.value for probe in probes]
        with torch.no_grad():
            packed = self._prepare(*inputs)
        forget = weakref.WeakMethod(self._forget)

        def gone(_: object) -> None:
            method = forget()
            if method is not None:
                method(key)

        entry = _Entry(state, probes, sample, packed, tuple(weakref.ref(w, gone) for w in weights))
        self._entries[key] = entry
        return entry

    def _forget(self, key: tuple[int, ...]) -> None:
        """Drop an entry whose weights are gone: ids are used again, and packings are as large as weights."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Forget all packings; they are made anew when asked for."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


def _probes(weight: torch.Tensor) -> list[_Probe]:
    """Return words spread over the weight, read in place at 0.04 us each; none where its memory is not the host's."""
    if weight.device.type != "cpu" or weight.numel() == 0:
        return []
    last = sum((size - 1) * step for size, step in zip(weight.shape, weight.stride(), strict=True))
    reach = (last + 1) * weight.element_size()
    word: type[_Probe] = ctypes.c_uint64 if reach >= 8 else ctypes.c_ubyte
    room = reach - ctypes.sizeof(word)
    starts = {room * i // (_SAMPLES - 1) for i in range(_SAMPLES)}
    return [word.from_address(weight.data_ptr() + start) for start in sorted(starts)]
