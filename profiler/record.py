"""Turn a workload into its profile: run each call, time it plain, record it, and attribute every op to its module."""

from __future__ import annotations

import gzip
import logging
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from ..models.errors import InputError, ResourceExhausted
from ..models.workload import Call, Workload
from . import notes
from .attribution import attribute
from .chrome_trace import Trace, read_trace
from .limits import measure
from .module_ranges import ModuleRanges
from .module_times import module_rows
from .op_costs import OpCosts, count_costs
from .recording import CallProfile, Limits, Profile
from .step import OPTIMIZER_RANGE, Step, device_of, is_compiled, is_out_of_memory, may_hold_compiled_code, undisturbed

logger = logging.getLogger(__name__)

STEP_RANGE = "hotswap: step"


@dataclass(frozen=True)
class _Recording:
    """One recorded step: its trace and its wall time under the profiler."""

    trace: Trace
    wall_us: float


def record(workload: Workload, *, trace: Path | None = None, limits: Limits | None = None, steps: int = 3) -> Profile:
    """Return where `workload` spends its time; the model, its gradients and the random state are left as they were.

    trace: where to keep the Chrome trace of the recorded step (gzip where the name ends in .gz), see `trace_paths`.
    limits: what the device can do, measured where not given. steps: how many steps are recorded, each in a window of
    its own; the median one is the profile.
    """
    if not workload.calls:
        raise InputError("workload: no example call; a profile needs at least one")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # libkineto announces every window on stderr below this
    model, said = _eager_model(workload.model)
    device = device_of(model, workload.calls[0])
    limits = limits or measure(str(device))
    calls: list[CallProfile] = []
    with undisturbed(model, workload.mode):
        paths = trace_paths(trace, workload.calls) if trace else (None,) * len(workload.calls)
        for call, kept in zip(workload.calls, paths, strict=True):
            step = Step(model, call, workload.mode, eager=may_hold_compiled_code())
            profiled, more = _record_call(step, limits, max(1, steps), kept)
            calls.append(profiled)
            said += more
    found = notes.limits_too_low(calls)
    name = workload.spec or type(model).__name__
    return Profile(name, str(device), limits, tuple(calls), tuple(said + ([found] if found else [])))


def _eager_model(model: nn.Module) -> tuple[nn.Module, list[str]]:
    """Return the model under its torch.compile wrapper, and what to say about it."""
    said = []
    if is_compiled(model):
        said.append("the model was already compiled: profiled eagerly, so rows are its own ops, not Inductor's kernels")
    while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        model = inner
    return model, said


def _page_faults(step: Step) -> int:
    """Return the minor page faults of one more step, warm like those that were timed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step.run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _record_call(step: Step, limits: Limits, steps: int, kept: Path | None) -> tuple[CallProfile, list[str]]:
    samples = step.sample()
    faults = _page_faults(step) if step.device.type == "cpu" else 0
    modules = ModuleRanges(step.model, record_function)
    recording, said = _record_steps(step, modules, steps, kept)
    costs, missing = _costs(step)
    said += missing
    on_device = bool(recording.trace.device)
    found = attribute(
        recording.trace,
        STEP_RANGE,
        modules.by_label,
        costs,
        limits,
        on_device=on_device,
        optimizer=OPTIMIZER_RANGE,
    )
    degraded = notes.no_device_events(recording.trace, step.device.type)
    rows = module_rows(step) if degraded else found.rows
    step_us, rows_us = statistics.median(samples), sum(row.self_us for row in rows)
    on_cpu = step.device.type == "cpu"
    whole_us = recording.wall_us if on_cpu else max(step_us, rows_us)
    profiled = CallProfile(
        name=step.call.name,
        weight=step.call.weight,
        rows=rows,
        step_us=step_us,
        step_samples_us=samples,
        recorded_us=recording.wall_us,
        other_us=max(0.0, whole_us - rows_us),
        busy_share=1.0 if on_cpu else min(1.0, found.busy_us / step_us),
        launches=0 if degraded else found.launches,
        peak_bytes=_peak_bytes(step),
        whole_us=whole_us,
    )
    remarks = (
        degraded,
        None if degraded else notes.launch_bound(profiled, step.device.type, limits),
        notes.heap_given_back(step.call.name, faults, resource.getpagesize()),
        notes.slowed_by_recording(profiled, step.device.type),
        notes.beside_the_step(step.call.name, found),
        notes.overlapping(step.call.name, found),
    )
    return profiled, said + [remark for remark in remarks if remark]


def _record_steps(step: Step, modules: ModuleRanges, steps: int, kept: Path | None) -> tuple[_Recording, list[str]]:
    """Record steps and return the median one; without shapes where they do not fit into memory.

    One window a step: a window with shapes keeps every tensor it saw until it ends, and a model that runs alone must
    not die of being profiled.
    """
    try:
        return _median_recording(step, modules, steps, kept, shapes=True), []
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    try:
        said = "degraded: recording shapes ran out of memory; recorded one step without: rows have no shapes or floors"
        return _median_recording(step, modules, 1, kept, shapes=False), [said]
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ResourceExhausted(
            f"call {step.call.name!r}: memory runs out under the profiler, not without ({error}); use a smaller batch"
        ) from error


def _median_recording(step: Step, modules: ModuleRanges, steps: int, kept: Path | None, *, shapes: bool) -> _Recording:
    with tempfile.TemporaryDirectory(prefix="hotswap-trace-") as folder:
        windows = []
        for number in range(steps):
            path = Path(folder) / f"{number}.json"
            with _window(path, step.device, record_shapes=shapes):
                windows.append((_recorded_step(step, modules), path))
        _, path = sorted(windows)[(len(windows) - 1) // 2]
        if kept is not None:
            _keep(path, kept)
        trace = read_trace(path)
    index = trace.find_range(STEP_RANGE)
    # The range, not our own clock: what the rows are a part of must be read off the same trace.
    return _Recording(trace, trace.host[index].dur_us if index is not None else 0.0)


def _recorded_step(step: Step, modules: ModuleRanges) -> float:
    run = step.prepare()
    step.synchronize()
    with modules:
        start = time.perf_counter()
        with record_function(STEP_RANGE):
            run()
        return (time.perf_counter() - start) * 1e6


@contextmanager
def _window(path: Path, device: torch.device, **options: Any) -> Iterator[None]:
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    # acc_events keeps nothing here (one window, no schedule); without it torch 2.11 warns about cycles.
    with torch_profile(activities=activities, acc_events=True, **options) as profiler:
        yield
    profiler.export_chrome_trace(str(path))


def _costs(step: Step) -> tuple[OpCosts, list[str]]:
    try:
        return count_costs(step.prepare(), ModuleRanges(step.model)), []
    except Exception as error:  # the user's model, or an op of theirs, may not stand a dispatch mode
        logger.debug("the pass that counts bytes and FLOPs failed", exc_info=error)
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return OpCosts(), [f"degraded: bytes and FLOPs are unknown, so no floors: the counting pass raised {reason}"]


def _peak_bytes(step: Step) -> int:
    """Return the most bytes that one step held at once, the model's own with it; other tensors do not count."""
    held = [part for t in (*step.model.parameters(), *step.model.buffers()) for part in _dense_parts(t)]
    resident = {t.untyped_storage().data_ptr(): t.nbytes for t in held}
    return int(_peak_bytes_on_top(step) + sum(resident.values()))


def _dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors with memory of their own that `tensor` is made of: itself, or what a sparse one holds."""
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    return (tensor.values(),)  # of a compressed one; its indices are left out


def _peak_bytes_on_top(step: Step) -> int:
    run = step.prepare()  # its inputs are the caller's, not what the step holds
    if step.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(step.device)
        before = torch.cuda.memory_allocated(step.device)
        run()
        return int(torch.cuda.max_memory_allocated(step.device) - before)
    with tempfile.TemporaryDirectory(prefix="hotswap-trace-") as folder:
        path = Path(folder) / "memory.json"
        with _window(path, step.device, profile_memory=True), record_function(STEP_RANGE):
            run()
        held = most = 0
        for size in read_trace(path).allocations:
            held += size
            most = max(most, held)
    return most


def _keep(path: Path, kept: Path) -> None:
    raw = path.read_bytes()
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(gzip.compress(raw, 6) if kept.suffix == ".gz" else raw)
    except OSError as error:
        raise ResourceExhausted(f"{kept}: cannot be written ({error.strerror}); choose another --trace") from error


def trace_paths(trace: Path, calls: Sequence[Call]) -> tuple[Path, ...]:
    """Return where the trace of each call goes: `trace` itself for one, else its name and the call's."""
    stem, dot, suffix = trace.name.partition(".")
    return (trace,) if len(calls) == 1 else tuple(trace.with_name(f"{stem}-{c.name}{dot}{suffix}") for c in calls)
