"""The records of a profile: one row for each captured op, and the step they add up to."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.record import Record


@dataclass(frozen=True)
class Limits(Record):
    """What this device can do, measured on it (never looked up by its name).

    copy_gb_s: bytes read plus bytes written per second of a large device copy, in 1e9 bytes.
    matmul_tflop_s: dtype name (`str(dtype)` without "torch.") to the rate of a large square matmul, in 1e12 FLOP/s.
    launch_us: host time to launch one trivial op. cache_bytes: size of the last-level cache, 0 where it is not known.
    copy_curve: bytes moved to GB/s of copies small enough for the caches, smallest first; empty where not measured.
    """

    device: str
    copy_gb_s: float
    matmul_tflop_s: dict[str, float]
    launch_us: float
    cache_bytes: int
    measured_at: str
    copy_curve: tuple[tuple[int, float], ...] = ()

    def copy_rate(self, moved: int) -> float:
        """Return the best rate in GB/s at which `moved` bytes can travel: what fits a cache need not touch memory."""
        smaller = [size for size, _ in self.copy_curve if size <= moved]
        least = smaller[-1] if smaller else 0
        return max([rate for size, rate in self.copy_curve if size >= least] + [self.copy_gb_s])


@dataclass(frozen=True)
class Row(Record):
    """One op as it was executed: same op, module, shapes, dtypes and strides are one row with a call count.

    self_us: self device time a step (CPU time on a CPU), all calls together; counted once, at the launch.
    floor_us: least time for all calls on this machine by `Limits`; None where neither bytes nor FLOPs are known.
    source: what kind of work it is: "memory" (bound by bytes), "compute" (bound by FLOPs) or "overhead".
    phase: "forward", "backward" (its module is the one whose forward it differentiates) or "optimizer".
    """

    op: str
    module: str
    module_class: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    strides: tuple[tuple[int, ...], ...]
    calls: int
    self_us: float
    floor_us: float | None
    bytes: int | None
    flops: int | None
    source: str
    phase: str = "forward"

    @property
    def headroom(self) -> float | None:
        """How many times slower than its floor the row runs; None where the floor is unknown."""
        return self.self_us / self.floor_us if self.floor_us else None


@dataclass(frozen=True)
class CallProfile(Record):
    """One example call of the workload: its rows, its wall time, and what the rows leave out.

    step_us: median wall time of the unprofiled call. recorded_us: the same under the profiler.
    whole_us: what rows and other add up to: the recorded step on a CPU; on a GPU the plain one, for the profiler slows
    the host and not the kernels (their sum, should they overlap to more). 0 in older files: the recorded step.
    other_us: the whole minus the rows' sum, never negative.
    busy_share: device-busy time as a share of the plain step; 1.0 on a CPU.
    launches: what the step put on the device; on a CPU, the ops themselves.
    peak_bytes: the most memory tensors held at once, weights and buffers among them.
    """

    name: str
    weight: float
    rows: tuple[Row, ...]
    step_us: float
    step_samples_us: tuple[float, ...]
    recorded_us: float
    other_us: float
    busy_share: float
    launches: int
    peak_bytes: int
    whole_us: float = 0.0

    @property
    def coverage(self) -> float:
        """Share of the whole that the rows account for."""
        return 1.0 - self.share(self.other_us) if self.whole_us or self.recorded_us else 0.0

    def share(self, us: float) -> float:
        """Return `us` as a share of what the rows and other add up to."""
        whole = self.whole_us or self.recorded_us
        return us / whole if whole else 0.0


@dataclass(frozen=True)
class Profile(Record):
    """Where a workload spends its time.

    notes: what a reader must know (degraded clocks, launch-bound, unwrapped model).
    """

    model: str
    device: str
    limits: Limits
    calls: tuple[CallProfile, ...]
    notes: tuple[str, ...] = ()
