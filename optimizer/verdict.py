"""The judge's answer as data: stages passed, the reason if rejected, timings only if accepted."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.record import Record


@dataclass(frozen=True)
class Interval(Record):
    """A median with a 99% bootstrap interval."""

    median: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Whether `value` lies outside the interval."""
        return value < self.low or value > self.high


@dataclass(frozen=True)
class Arm(Record):
    """One side of a race. samples_us: time of one call in each block, in the order the blocks ran."""

    name: str
    samples_us: tuple[float, ...]
    median_us: float


@dataclass(frozen=True)
class Race(Record):
    """Interleaved timing of a candidate and its rivals on one shape.

    speedup: rival's name to the interval of (rival time / candidate time); above 1 the candidate is faster.
    timer, cache: how the time was taken ("host wall, slope of N and 2N calls") and the cache state ("cold", "warm").
    """

    case: str
    weight: float
    arms: tuple[Arm, ...]
    speedup: dict[str, Interval]
    timer: str
    cache: str
    block_s: float
    load_average: float


@dataclass(frozen=True)
class StageResult(Record):
    """What one stage saw. evidence: figures by name, as text a person can read."""

    stage: str
    passed: bool
    seconds: float
    evidence: dict[str, str]


@dataclass(frozen=True)
class Verdict(Record):
    """Accepted or rejected, and everything the decision rests on.

    stage, reason: where and why it was rejected; None when accepted.
    speedup: weighted over the shapes, against the best rival; None unless accepted and timed.
    """

    accepted: bool
    stage: str | None
    reason: str | None
    stages: tuple[StageResult, ...]
    races: tuple[Race, ...]
    speedup: Interval | None
    source_hash: str
    isolation: str
    environment: dict[str, str]

    def __post_init__(self) -> None:
        if self.races and not self.accepted:
            raise ValueError("a rejected verdict carries no timings")
        if self.accepted == (self.reason is not None):
            raise ValueError("a rejected verdict has a reason, an accepted one none")
