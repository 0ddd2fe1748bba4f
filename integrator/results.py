"""The records of an integration: what was swapped, whether it is still the model, and what it gained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..models.record import Record
from ..optimizer.verdict import Arm, Interval

Tail = Literal["eager", "planned", "cudagraph", "inductor", "inductor-cudagraph"]
Outcome = Literal["kernel", "inductor", "left alone", "dropped"]


@dataclass(frozen=True)
class EndToEnd(Record):
    """Interleaved whole-model timing of one example call.

    arms: "eager", "compile", "hotswap" and any other baseline.
    speedup: rival's name to (rival / hotswap), above 1 is a gain.
    compile_s: arm to seconds of its first call; of ours, of the first two, as what is recorded is so at the second.
    """

    call: str
    weight: float
    arms: tuple[Arm, ...]
    speedup: dict[str, Interval]
    compile_s: dict[str, float]
    load_average: float


@dataclass(frozen=True)
class LeafCheck(Record):
    """One leaf of the output tree.

    error, eager_error: relative error in norm of hotswap and of eager, both to the run one precision up.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    error: float
    eager_error: float
    max_abs: float
    cosine: float
    passed: bool


@dataclass(frozen=True)
class Check(Record):
    """One verification input.

    top1: share of equal arg-max over the last dim of the leading float leaf, None where it means nothing.
    bitwise: every leaf is eager's bit for bit; None where leaves were not compared.
    """

    name: str
    passed: bool
    leaves: tuple[LeafCheck, ...]
    kl: float | None
    top1: float | None
    detail: str
    bitwise: bool | None = None


@dataclass(frozen=True)
class Engagement(Record):
    """Whether one swapped op ran. A fallback is a call outside the verified domain, answered by the original ops."""

    task: str
    sites: int
    kernel_calls: int
    fallback_calls: int
    fallback_reasons: dict[str, int]


@dataclass(frozen=True)
class Ablation(Record):
    """End-to-end effect of one kept task: step without it / step with it, and alone / none. Above 1 it helps."""

    task: str
    leave_one_out: Interval
    add_one_in: Interval | None
    predicted: float
    kept: bool
    reason: str


@dataclass(frozen=True)
class OpRow(Record):
    """One line of the per-op table. Times are microseconds a step, all calls together; None where not measured."""

    task: str
    module: str
    module_class: str
    sites: int
    ops: tuple[str, ...]
    calls: int
    before_us: float
    share: float
    after_us: float | None
    inductor_us: float | None
    floor_us: float
    speedup_eager: Interval | None
    speedup_inductor: Interval | None
    model_gain: Interval | None
    predicted_gain: float
    outcome: Outcome
    reason: str
    attempts: int
    folder: str


@dataclass(frozen=True)
class SearchPoint(Record):
    """One attempt as the report draws it.

    seconds: what the attempt took. us: candidate's time of one call where it was timed; best_us: best accepted so far.
    """

    attempt: int
    seconds: float
    proposer: str
    accepted: bool
    reason: str
    us: float | None
    best_us: float | None


@dataclass(frozen=True)
class TaskStory(Record):
    """What was tried on a task, and the sources side by side. kernel: text of the winner, None where none won.

    eager_us, inductor_us, floor_us: one call, as the points' times are. attained_gflop_s: rate of the eager ops.
    """

    task: str
    reference: str
    kernel: str | None
    points: tuple[SearchPoint, ...]
    eager_us: float
    inductor_us: float | None
    floor_us: float
    arithmetic_intensity: float | None
    attained_gflop_s: float | None


@dataclass(frozen=True)
class SkippedRow(Record):
    """Something hot that was left out, and why."""

    what: str
    module: str
    share: float
    reason: str


@dataclass(frozen=True)
class Bar(Record):
    """One segment of a waterfall: what the step's time went to."""

    label: str
    us: float


@dataclass(frozen=True)
class Report(Record):
    """Everything a report shows. Saved as `report.json`; the other forms are made from it.

    complete: False when the run was stopped early; what is there is still true.
    before, after: the eager step and the patched step split into bars (equal units, microseconds).
    predicted_speedup: Amdahl from the judge's per-task figures; the measured one is in `end_to_end`.
    copy_gb_s, matmul_tflop_s: the roofline of this machine.
    """

    model: str
    device: str
    dtype: str
    complete: bool
    tail: Tail
    started: str
    seconds: float
    seconds_by_stage: dict[str, float]
    end_to_end: tuple[EndToEnd, ...]
    checks: tuple[Check, ...]
    engagement: tuple[Engagement, ...]
    rows: tuple[OpRow, ...]
    ablations: tuple[Ablation, ...]
    stories: tuple[TaskStory, ...]
    skipped: tuple[SkippedRow, ...]
    before: tuple[Bar, ...]
    after: tuple[Bar, ...]
    predicted_speedup: float | None
    copy_gb_s: float
    matmul_tflop_s: dict[str, float]
    coverage: float
    breaks: tuple[str, ...]
    notes: tuple[str, ...]
    environment: dict[str, str]
    patched: str | None
    command: str
