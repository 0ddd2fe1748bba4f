"""Time the arms of one row on the same inputs, interleaved, and put what was seen into rows of the result file."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hotswap.benchmarks.kernels_kit.ours import Found, Search, as_task, interpreted, proposers
from hotswap.benchmarks.kernels_kit.rivals import Rival, rivals
from hotswap.benchmarks.kernels_kit.rows import Row
from hotswap.optimizer.device_clock import NotCapturable, capture, cold_sets, interleaved
from hotswap.optimizer.timing import ratio_interval
from hotswap.profiler.recording import Limits

OURS = "ours"
_QUICK_SECONDS = 0.02
# What reads above the measured limit by more than the limit's own noise was not timed, whatever the clock says.
_ABOVE_LIMIT = 1.05


@dataclass(frozen=True)
class Effort:
    """How long and against whom. arms: names of rivals. seed: of all inputs.

    proposers: who is asked for our arm, everybody where empty.
    """

    arms: tuple[str, ...]
    blocks: int = 8
    block_seconds: float = 0.2
    search_seconds: float = 10.0
    starters: Path | None = None
    proposers: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Timer:
    """A way to time a function over input sets: `block(seconds)` gives microseconds a call. name: for the record."""

    name: str
    block: Callable[[float], float]


def measured(row: Row, device: str, limits: Limits, read_gb_s: float, effort: Effort) -> list[dict[str, Any]]:
    """Return one result row an arm, ours among them, all timed in the same interleaved blocks."""
    sets = _sets(row, device, limits, effort.seed)
    arms = rivals(row, sets[0], effort.arms, effort.starters)
    with tempfile.TemporaryDirectory() as scratch:
        found = _search(row, sets, effort, Path(scratch))
        if found.call is not None:
            arms.append(Rival(OURS, found.call))
        timers: dict[str, Timer] = {}
        notes = {arm.name: why for arm in arms if (why := arm.reason or arm.breach)}
        for arm in arms:
            if arm.call is not None:
                try:
                    timers[arm.name] = timer(arm.call, sets)
                except NotCapturable as why:
                    notes[arm.name] = f"not capturable: {why}"
        taken = interleaved([t.block for t in timers.values()], blocks=effort.blocks, seconds=effort.block_seconds)
    samples = dict(zip(timers, taken, strict=True))
    if found.reason:
        notes[OURS] = found.reason
    limit_us = limit(row, sets[0], limits, read_gb_s)
    made = [
        _result(row, name, samples, notes, limit_us, timers)
        for name in [*(a.name for a in arms if a.name != OURS), OURS]
    ]
    made[-1] |= _about(found, row)
    for result, arm in zip(made, arms, strict=False):
        if arm.name != OURS:
            result |= {"ready_s": arm.ready_s, "counts": arm.breach is None}
    return made


def _sets(row: Row, device: str, limits: Limits, seed: int) -> list[list[Tensor]]:
    first = row.inputs(device, seed)
    count = cold_sets(sum(t.numel() * t.element_size() for t in first), limits.cache_bytes) if device != "cpu" else 2
    return [first, *(row.inputs(device, seed + n) for n in range(1, count))]


def limit(row: Row, inputs: list[Tensor], limits: Limits, read_gb_s: float) -> float:
    """Return the least microseconds a call can take: bytes at the rates of memory, FLOPs at the matmul rate.

    What is read goes at the measured rate of reading, what is written at the rate that leaves for a copy's writes.
    """
    outputs = list(row.family.reference(*inputs))
    write_gb_s = 1.0 / (2.0 / limits.copy_gb_s - 1.0 / read_gb_s)
    moved = row.bytes(inputs, []) / (read_gb_s * 1e3) + row.bytes([], outputs) / (write_gb_s * 1e3)
    rate = limits.matmul_tflop_s.get(row.dtype_name, max(limits.matmul_tflop_s.values())) * 1e6
    return max(moved, row.family.flops(row.size) / rate)


def _search(row: Row, sets: list[list[Tensor]], effort: Effort, folder: Path) -> Found:
    on_gpu = sets[0][0].is_cuda or interpreted()
    loaded = as_task(row, sets[0], "cuda" if on_gpu else "cpu")

    def quickly(call: Callable[..., Any]) -> float:
        return timer(call, sets).block(_QUICK_SECONDS)

    asked = [p for p in proposers(loaded) if not effort.proposers or p.name in effort.proposers]
    return Search(row, loaded, folder, quickly).run(asked, effort.search_seconds)


def timer(call: Callable[..., Any], sets: list[list[Tensor]]) -> Timer:
    """Return how a function is timed on `sets`: graph replay on a GPU, else the host's clock."""
    if sets[0][0].is_cuda:
        return Timer("CUDA graph replay", capture(call, sets).block)

    def block(seconds: float) -> float:
        calls, started = 0, time.perf_counter()
        while calls < len(sets) or time.perf_counter() - started < seconds:
            call(*sets[calls % len(sets)])
            calls += 1
        return (time.perf_counter() - started) * 1e6 / calls

    call(*sets[0])
    return Timer("host wall", block)


def _result(
    row: Row, name: str, samples: dict[str, list[float]], notes: dict[str, str | None], limit_us: float,
    timers: dict[str, Timer],
) -> dict[str, Any]:  # fmt: skip
    made: dict[str, Any] = {
        "task": row.family.task, "shape": row.shape, "dtype": row.dtype_name, "arm": name, "us": None,
        "interval": None, "share_of_limit": None, "limit_us": limit_us, "ours_faster": None,
        "at_most_us": row.family.most_us.get(row.shape), "note": notes.get(name), "samples_us": [],
    }  # fmt: skip
    mine = samples.get(name)
    if mine is None:
        return made
    around = ratio_interval(mine, [1.0] * len(mine), seed=0)
    share = limit_us / statistics.median(mine)
    if share > _ABOVE_LIMIT and timers[name].name != "host wall":
        made["note"] = f"rejected: {share:.2f} of the measured limit"
        return made | {"samples_us": mine}
    ours = samples.get(OURS) if name != OURS else None
    return made | {
        "us": around.median,
        "interval": [around.low, around.high],
        "share_of_limit": share,
        "ours_faster": ratio_interval(mine, ours, seed=0).to_dict() if ours else None,
        "samples_us": mine,
        "timer": timers[name].name,
    }


def _about(found: Found, row: Row) -> dict[str, Any]:
    return {
        "proposer": found.proposer,
        "knobs": found.knobs,
        "label": found.label,
        "search_s": found.seconds,
        "tried": [list(t) for t in found.tried],
    }
