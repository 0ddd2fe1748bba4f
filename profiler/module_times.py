"""Time whole modules without a profiler, for where none works: each module's own time, its children's taken off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from .module_ranges import ModuleName, ModuleRanges
from .recording import Row
from .step import Step


class Stamp(Protocol):
    """A moment on a device's own clock."""

    def us_until(self, later: Any) -> float: ...


class HostStamp:
    """A moment on the host's clock."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def us_until(self, later: HostStamp) -> float:
        return (later._at - self._at) * 1e6


class CudaStamp:
    """A moment on the current CUDA stream; read it only after a sync."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def us_until(self, later: CudaStamp) -> float:
        return float(self._event.elapsed_time(later._event)) * 1e3


@dataclass
class _Visit:
    label: str
    begin: Stamp
    end: Stamp | None = None
    children: list[_Visit] = field(default_factory=list)


def module_rows(step: Step, stamp: Callable[[], Stamp] | None = None) -> tuple[Row, ...]:
    """Run one step and return a row for each module with its own time, dearest first.

    stamp: makes a moment on the clock; by default the clock of the step's device.
    """
    make = stamp or (CudaStamp if step.device.type == "cuda" else HostStamp)
    roots: list[_Visit] = []
    open_visits: list[_Visit] = []

    @contextmanager
    def timed(label: str) -> Iterator[None]:
        visit = _Visit(label, make())
        (open_visits[-1].children if open_visits else roots).append(visit)
        open_visits.append(visit)
        try:
            yield
        finally:
            open_visits.pop().end = make()

    modules = ModuleRanges(step.model, timed)
    with modules:
        step.run()
    step.synchronize()
    sums: dict[str, list[float]] = {}
    for visit in roots:
        _collect(visit, sums)
    rows = [_row(modules.by_label[label], times) for label, times in sums.items()]
    return tuple(sorted(rows, key=lambda row: -row.self_us))


def _collect(visit: _Visit, sums: dict[str, list[float]]) -> float:
    whole = visit.begin.us_until(visit.end)
    inside = sum(_collect(child, sums) for child in visit.children)
    sums.setdefault(visit.label, []).append(max(0.0, whole - inside))
    return whole


def _row(name: ModuleName, times_us: list[float]) -> Row:
    return Row(
        op="(module)",
        module=name.path,
        module_class=name.class_name,
        shapes=(),
        dtypes=(),
        strides=(),
        calls=len(times_us),
        self_us=sum(times_us),
        floor_us=None,
        bytes=None,
        flops=None,
        source="overhead",
    )
