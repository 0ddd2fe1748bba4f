"""What a reader of a profile must know: sentences made from the figures, each with what to do."""

from __future__ import annotations

from collections.abc import Sequence

from .attribution import Attribution
from .chrome_trace import Trace
from .recording import CallProfile, Limits

LAUNCH_BOUND_SHARE = 0.7
_FASTER_THAN_FLOOR = 0.8
_FAULTED_IN_AGAIN = 4 << 20


def no_device_events(trace: Trace, device_type: str) -> str | None:
    """Say that a GPU model left no device events: the driver may refuse profiling, nothing in the trace tells."""
    if device_type == "cpu" or trace.device:
        return None
    return (
        f"degraded: the model is on {device_type} but the profiler recorded no device events (CUPTI has no permission "
        "here, or another profiler is attached): rows are whole modules, timed by stream events; for rows by op use "
        "CAP_SYS_ADMIN, or set NVreg_RestrictProfilingToAdminUsers=0"
    )


def heap_given_back(call: str, faults: int, page_bytes: int) -> str | None:
    """Say that each step faults in again what the last one freed, where that is more than a few MiB."""
    if faults * page_bytes < _FAULTED_IN_AGAIN:
        return None
    return (
        f"call {call!r}: {faults:,} page faults a step ({faults * page_bytes / 2**20:.0f} MiB): freed memory goes back "
        "to the system and is faulted in again; try MALLOC_TRIM_THRESHOLD_=100000000000 and "
        "MALLOC_MMAP_THRESHOLD_=33554432 in the environment (glibc), which helps eager and compiled alike"
    )


def launch_bound(call: CallProfile, device_type: str, limits: Limits) -> str | None:
    """Say that the host, not the device, sets the step's time, where it does."""
    if device_type == "cpu":
        # Of the plain step: recording adds to what is not ops, so a share of the recorded step would overstate it.
        outside = 1.0 - sum(row.self_us for row in call.rows) / call.step_us if call.step_us else 0.0
        if outside < 0.5:
            return None
        return (
            f"call {call.name!r}: at least {100 * outside:.0f}% of the step is Python and dispatch, not ops; faster "
            "kernels cannot help there: compile the model or give it a larger batch"
        )
    if not call.rows or call.busy_share >= LAUNCH_BOUND_SHARE:
        return None
    most = 1 / max(1e-3, 1 - call.busy_share)
    return (
        f"call {call.name!r}: launch-bound: the device is busy {100 * call.busy_share:.0f}% of the step "
        f"({call.launches} launches, {limits.launch_us:.1f} us of host time each at least); faster kernels can win at "
        f"most {most:.2f}x: use CUDA graphs or torch.compile(mode='reduce-overhead') first"
    )


def slowed_by_recording(call: CallProfile, device_type: str) -> str | None:
    """Say that a CPU step took far longer while recorded, so that "other" holds what is not the model's."""
    if device_type != "cpu" or call.recorded_us < 2 * call.step_us:
        return None
    slower = call.recorded_us / call.step_us
    return (
        f"call {call.name!r}: the recorded step took {slower:.1f}x the plain one (a small step, or a busy machine): "
        '"other" is overstated, shares are understated; profile a larger batch, or when the machine is idle'
    )


def beside_the_step(name: str, found: Attribution) -> str | None:
    """Say that ops ran on other threads at the same time, where it was more than a trace of noise."""
    if found.elsewhere_us < 100.0:
        return None
    return f"call {name!r}: {found.elsewhere_us:.0f} us of ops ran on other threads beside the step and are in no row"


def overlapping(name: str, found: Attribution) -> str | None:
    """Say that rows add up to more than the device was busy: streams that run at once are counted once each."""
    total = sum(row.self_us for row in found.rows)
    if not found.busy_us or total <= found.busy_us * 1.01:
        return None
    return f"call {name!r}: rows add up to {total / found.busy_us:.2f}x the device's busy time: streams overlap"


def limits_too_low(calls: Sequence[CallProfile]) -> str | None:
    """Say that ops beat their own floor: then the limits were measured while something else was running."""
    rows = [r for c in calls for r in c.rows if r.headroom is not None and r.floor_us and r.self_us > 20.0]
    faster = [r for r in rows if r.headroom is not None and r.headroom < _FASTER_THAN_FLOOR]
    if not faster:
        return None
    return (
        f"{len(faster)} of {len(rows)} rows ran faster than their floor: the limits were measured on a busy machine; "
        "measure them again (--refresh-limits)"
    )
