"""Turn a Chrome trace (a dict, or a .json or .json.gz file) into host and device events with self times.

Knows the trace format only: which module an event belongs to and what it cost is `attribution`'s business.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..models.errors import RecordError

Kind = Literal["op", "range", "launch"]

_HOST_KINDS: Mapping[str, Kind] = {
    "cpu_op": "op",
    "user_annotation": "range",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
}
_DEVICE_KINDS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


@dataclass(frozen=True, slots=True)
class HostEvent:
    """One thing the host did.

    self_us: duration minus that of the ops and ranges directly inside, so that all self times below a range add up to
    it; a launch is part of the op that made it and has none of its own. parent: index of the innermost op or range
    around it on its thread, None at the top.
    """

    name: str
    kind: Kind
    thread: tuple[str, str]
    start_us: float
    dur_us: float
    self_us: float
    parent: int | None
    args: Mapping[str, Any]

    @property
    def end_us(self) -> float:
        return self.start_us + self.dur_us


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """One kernel, copy or fill on a device; launcher: index of the op or range that launched it, None if unknown.

    launch_name: the runtime call that launched it; correlation: shared by all that one call launched (a CUDA graph).
    """

    name: str
    start_us: float
    dur_us: float
    launcher: int | None
    launch_name: str | None
    correlation: int | None


@dataclass(frozen=True)
class Trace:
    """The events of one recording; host events are ordered by thread, then start, parents before children.

    allocations: bytes taken (positive) and given back (negative) by each allocator event, in time order.
    """

    host: tuple[HostEvent, ...]
    device: tuple[DeviceEvent, ...]
    allocations: tuple[int, ...] = ()

    def find_range(self, name: str) -> int | None:
        """Return the index of the first range called `name`, None where there is none."""
        return next((i for i, e in enumerate(self.host) if e.kind == "range" and e.name == name), None)

    def busy_us(self) -> float:
        """Return how long at least one device event was running: overlapping streams count once."""
        busy, until = 0.0, float("-inf")
        for event in sorted(self.device, key=lambda e: e.start_us):
            end = event.start_us + event.dur_us
            busy += max(0.0, end - max(until, event.start_us))
            until = max(until, end)
        return busy


def read_trace(path: Path) -> Trace:
    """Return the events of a trace file; raise RecordError where it is absent, cut short, not JSON or empty."""
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        plain = json.loads(text)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror or error}); expected a Chrome trace") from error
    except (EOFError, zlib.error) as error:
        raise RecordError(f"{path}: the gzip is cut short ({error}); record the trace again") from error
    except ValueError as error:
        raise RecordError(f"{path}: not whole JSON ({error}); record the trace again") from error
    return parse_trace(plain, str(path))


def parse_trace(plain: Any, where: str = "trace") -> Trace:
    """Return the events of a loaded trace; raise RecordError naming `where` when it is no trace or holds no events.

    Rank fields, whole categories of device events and arguments may be absent: not every trace has them.
    """
    events = plain.get("traceEvents") if isinstance(plain, dict) else plain
    if not isinstance(events, list) or not all(isinstance(e, dict) for e in events):
        raise RecordError(f"{where}: expected a Chrome trace with a list of traceEvents; this is another kind of JSON")
    timed = [e for e in events if e.get("ph") == "X" and "ts" in e]
    host_raw = [e for e in timed if e.get("cat") in _HOST_KINDS]
    device_raw = [e for e in timed if e.get("cat") in _DEVICE_KINDS]
    if not host_raw and not device_raw:
        raise RecordError(
            f"{where}: the trace is empty: no op, range or kernel in {len(events)} events; record it again"
        )
    host = _nest(host_raw)
    memory = sorted((e for e in events if e.get("name") == "[memory]"), key=_start)
    return Trace(host, _join(device_raw, host), tuple(int(e.get("args", {}).get("Bytes", 0)) for e in memory))


def _start(event: Mapping[str, Any]) -> float:
    return float(event.get("ts", 0.0))


def _duration(event: Mapping[str, Any]) -> float:
    return float(event.get("dur", 0.0))


def _thread(event: Mapping[str, Any]) -> tuple[str, str]:
    return str(event.get("pid", "")), str(event.get("tid", ""))


def _nest(raw: Sequence[Mapping[str, Any]]) -> tuple[HostEvent, ...]:
    """Find each event's parent by time on its thread and take the children's time off it."""
    ordered = sorted(raw, key=lambda e: (_thread(e), _start(e), -_duration(e)))
    parents: list[int | None] = []
    inside_us = [0.0] * len(ordered)
    open_events: list[int] = []
    for index, event in enumerate(ordered):
        start = _start(event)
        while open_events and (
            _thread(ordered[open_events[-1]]) != _thread(event)
            or start >= _start(ordered[open_events[-1]]) + _duration(ordered[open_events[-1]])
        ):
            open_events.pop()
        parent = open_events[-1] if open_events else None
        parents.append(parent)
        if _HOST_KINDS[event["cat"]] == "launch":
            continue  # neither holds anything nor takes time off its op: launching is the op's own work
        if parent is not None:
            # A child may end some nanoseconds after its parent: what sticks out is not the parent's.
            parent_end = _start(ordered[parent]) + _duration(ordered[parent])
            inside_us[parent] += min(_duration(event), parent_end - start)
        open_events.append(index)
    return tuple(
        HostEvent(
            name=str(event.get("name", "")),
            kind=_HOST_KINDS[event["cat"]],
            thread=_thread(event),
            start_us=_start(event),
            dur_us=_duration(event),
            self_us=0.0 if event["cat"].startswith("cuda_") else max(0.0, _duration(event) - inside_us[index]),
            parent=parents[index],
            args=event.get("args") or {},
        )
        for index, event in enumerate(ordered)
    )


def _join(raw: Sequence[Mapping[str, Any]], host: Sequence[HostEvent]) -> tuple[DeviceEvent, ...]:
    """Join device events to what launched them: by the op's External id, else by correlation with a runtime call."""
    by_external = {
        e.args["External id"]: i for i, e in enumerate(host) if e.kind != "launch" and "External id" in e.args
    }
    by_correlation = {
        e.args["correlation"]: i for i, e in enumerate(host) if e.kind == "launch" and "correlation" in e.args
    }
    joined = []
    for event in sorted(raw, key=_start):
        args = event.get("args") or {}
        launch = by_correlation.get(args.get("correlation"))
        launcher = by_external.get(args.get("External id"))
        if launcher is None and launch is not None:
            launcher = host[launch].parent
        name = host[launch].name if launch is not None else None
        joined.append(
            DeviceEvent(
                str(event.get("name", "")), _start(event), _duration(event), launcher, name, args.get("correlation")
            )
        )
    return tuple(joined)
