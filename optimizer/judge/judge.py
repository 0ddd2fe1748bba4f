"""The judge of one task: it keeps rivals warm and what they are measured against, and gives verdicts on candidates."""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import random
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from ...extractor.load_task import load_task
from ...extractor.task import Task
from ...models.cache import cache_dir
from ...models.environment import environment
from ...profiler.limits import measure
from ...profiler.recording import Limits as DeviceLimits
from ..candidate import read_source
from ..verdict import Interval, Race, StageResult, Verdict
from .bank import Bank
from .hall import Hall, WorkerError
from .lane import Lane
from .pool import Pool, cache_state, make_pool, pool_bytes_on
from .race import as_race, fastest, run, weighted_speedup
from .rivals import Rivals
from .stages import STAGES
from .timed_outputs import TimedOutputError
from .trial import Patience, Rejected, Trial

logger = logging.getLogger(__name__)

_SCREENING_ROUNDS = 3
# A block of screening is this part of one of an acceptance: calls on a device differ less from each other.
_SCREENING_PART = {"cpu": 1 / 4, "cuda": 1 / 16}
# What the stage "timing" is made of, in order, as its evidence names them.
_PARTS = ("screening", "clean process", "acceptance")
# A copy measured on the same machine may be beaten by this much: inputs can still lie in a cache.
_ABOVE_COPY = 1.5
# Below this the time to move the bytes is less than what a busy machine adds to or takes from a slope.
_LEAST_MOVED = 64 << 10


class Judge:
    """Judges candidates for the task in `folder`; a context manager, for it owns processes.

    seed: None draws a secret one. block_s, rounds: least length of a timed block and blocks a side. pool_bytes:
    memory for the timed input sets of a worker, None for what suits the device. threads: of every arm, None for torch's
    own number here. hall: where workers come from, which outlives this judge and has threads of its own; None for one
    of this judge's.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        seed: int | None = None,
        block_s: float = 0.2,
        rounds: int = 8,
        pool_bytes: int | None = None,
        patience: Patience | None = None,
        threads: int | None = None,
        inductor: bool = True,
        hall: Hall | None = None,
    ) -> None:
        self.folder = Path(folder).resolve()
        self._seed = secrets.randbits(62) if seed is None else seed
        self._source = random.Random(self._seed)
        self._block_s, self._rounds = block_s, max(rounds, 2)
        self._patience = patience or Patience()
        self._environment = environment()
        if hall is not None and threads is not None and threads != hall.threads:
            raise ValueError(f"threads={threads}, but the given hall's workers have {hall.threads}; leave one out")
        self._hall = hall or Hall(threads=threads, device=Task.load(self.folder / "task.json").device)
        self._hall.hide(*_hidden(self.folder))
        with ExitStack() as undo:
            if hall is None:
                undo.callback(self._hall.close)
            loaded = load_task(self.folder)
            recorded = [loaded.inputs(number) for number in range(len(loaded.task.cases))]
            # Rivals compile while the bank computes its oracles.
            self._rivals = Rivals(self._hall, recorded, self.folder, compiled=inductor, cache=cache_dir() / "rivals")
            undo.callback(self._rivals.close)
            self.bank = Bank(loaded, self._seed)
            self._ended_by = undo.pop_all()
        self._pools: list[Pool] = []
        self._pool_bytes = pool_bytes or pool_bytes_on(self.task.device)
        self._baselines: tuple[Race, ...] = ()
        self.best = 1.0
        """The speed-up over the best rival that screening must be within noise of; each acceptance may raise it."""
        self._uncapturable = ""
        self._hopeless = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def hall(self) -> Hall:
        """Where this judge's workers come from."""
        return self._hall

    @property
    def task(self) -> Task:
        return self.bank.task

    @property
    def tried(self) -> Sequence[tuple[tuple[int, ...], ...]]:
        """The input shapes tried beyond the recorded ones."""
        return [tuple(spec.shape for spec in s.variant.specs) for s in self.bank.neighbours]

    def baseline(self) -> Race:
        """Return eager against Inductor on the case that weighs most; the arms of `baselines()` hold all cases."""
        return max(self.baselines(), key=lambda r: r.weight * r.arms[0].median_us)

    def baselines(self) -> tuple[Race, ...]:
        """Return the race of the rivals for every recorded case, run once."""
        if not self._baselines:
            for pool in self._pools_now():  # drawn, and the oracle asked, while Inductor may still be compiling
                pool.hard(False)
            lanes = self._rivals.lanes(self._patience.call_s)
            subject = lanes[-1].name
            self._baselines = self._race(lanes, subject, self._rounds, self._block_s)
        return self._baselines

    def race(self, source: str) -> tuple[Race, ...]:
        """Return a full race of a candidate that was accepted before, on fresh inputs in a clean process.

        Raises trial.Rejected where it does not load, or where its outputs are wrong now.
        """
        trial = Trial(source, self.bank, self._hall, self._patience)
        try:
            trial.load()
            trial.check(self.bank.recorded[0])
            return self._raced(trial, self._rounds, self._block_s)
        finally:
            trial.close()

    def verdict(self, source: str) -> Verdict:
        """Return the verdict on a candidate's source. Whatever the candidate does, this returns."""
        trial = Trial(source, self.bank, self._hall, self._patience)
        results: list[StageResult] = []
        try:
            for stage in STAGES:
                failed = _run_stage(stage.__name__, functools.partial(stage, trial), results)
                if failed:
                    return self._verdict(source, results, failed)
            races: list[Race] = []
            failed = _run_stage("timing", functools.partial(self._timing, trial, races), results)
            return self._verdict(source, results, failed, races)
        finally:
            trial.close()

    def close(self) -> None:
        """End every process of this judge; a hall that was given stays."""
        self._ended_by.close()

    def _timing(self, trial: Trial, races: list[Race]) -> dict[str, str]:
        """Screen, then race in a clean process if screening does not say that the candidate is clearly slower."""
        part = _SCREENING_PART.get(self.task.device, 1 / 4)
        clock = [time.monotonic()]
        races += self._raced(trial, _SCREENING_ROUNDS, self._block_s * part, screening=True)
        clock.append(time.monotonic())
        rival, screened = weighted_speedup(races, "candidate")
        depth = "screening, cut short: clearly slower" if self._hopeless else "screening"
        if screened.high >= self.best:
            trial.renew()
            trial.check(self.bank.recorded[0])
            clock.append(time.monotonic())
            races[:] = self._raced(trial, self._rounds, self._block_s)
            clock.append(time.monotonic())
            rival, final = weighted_speedup(races, "candidate")
            depth = "acceptance, in a clean process"
            self.best = max(self.best, final.median)
        others = trial.worker.others()
        if others:
            raise Rejected(f"left {others} other process(es) running")
        if not depth.startswith("screening, cut"):  # a few calls tell slow from fast, and not how fast
            refuse_impossible(races, [p.moved_bytes for p in self._pools_now()], measure(self.task.device))
        seen = {"depth": depth, "best rival": rival, "rivals left out": self._rivals.missing or "none"}
        spent = zip(_PARTS, (after - before for before, after in itertools.pairwise(clock)), strict=False)
        seen["seconds"] = ", ".join(f"{part} {took:.3f}" for part, took in spent)
        return seen | ({"not captured": self._uncapturable} if self._uncapturable else {})

    def _raced(self, trial: Trial, rounds: int, block_s: float, *, screening: bool = False) -> tuple[Race, ...]:
        call_s = self._patience.call_s
        rivals = self._rivals.lanes(call_s)
        if screening and self._baselines:  # the best is the one to beat; all take part in an acceptance
            rivals = [lane for lane in rivals if lane.name == fastest(self._baselines)]
        lanes = [Lane("candidate", trial.worker, [], call_s, packed=trial.has_prepare), *rivals]
        try:
            return self._race(lanes, "candidate", rounds, block_s, trial, screening=screening)
        except TimedOutputError as error:
            raise Rejected(f"{error}; it was right while it was not timed") from error
        except WorkerError as error:
            raise Rejected(f"while timed: {error}") from error

    def _race(
        self, lanes: list[Lane], subject: str, rounds: int, block_s: float, trial: Trial | None = None,
        *, screening: bool = False,
    ) -> tuple[Race, ...]:  # fmt: skip
        races = []
        self._hopeless = False
        for pool in self._pools_now():
            for lane in lanes:
                if trial is not None and lane.strides is not None:
                    lane.strides = trial.strides[pool.sample.variant.name]
                lane.enter(pool)
            try:
                self._hopeless |= run(
                    lanes, pool, self.bank, rounds=rounds, block_s=block_s, source=self._source, cut_short=screening
                )
            finally:
                for lane in lanes:
                    lane.leave()
            self._uncapturable = "; ".join(f"{x.name}: {x.uncapturable}" for x in lanes if x.uncapturable)
            races.append(as_race(lanes, pool, subject, block_s, cache_state(pool, _cache_bytes(self.task.device))))
        return tuple(races)

    def _pools_now(self) -> list[Pool]:
        if not self._pools:
            weights = [c.weight for c in self.task.cases]
            self._pools = [
                make_pool(self.bank, s, w, self._pool_bytes) for s, w in zip(self.bank.recorded, weights, strict=True)
            ]
        return self._pools

    def _verdict(
        self, source: str, results: list[StageResult], failed: str | None, races: Sequence[Race] = ()
    ) -> Verdict:
        speedup: Interval | None = None
        if failed is None and races:
            _, speedup = weighted_speedup(races, "candidate")
        return Verdict(
            accepted=failed is None,
            stage=results[-1].stage if failed is not None else None,
            reason=failed,
            stages=tuple(results),
            races=tuple(races) if failed is None else (),
            speedup=speedup,
            source_hash=hashlib.sha256(source.encode(errors="replace")).hexdigest(),
            isolation=self._hall.isolation,
            environment=self._environment,
        )


def judge(task: Path | str, candidate: Path | str) -> Verdict:
    """Return the verdict on one candidate file for the task in a folder: what `hotswap task try` prints.

    Raises SpecError where the file is no text, RecordError where the folder is no task, InputError where the task
    proves nothing; whatever the candidate itself does is in the verdict.
    """
    source = read_source(Path(candidate))
    with Judge(task) as court:
        return court.verdict(source)


def _run_stage(name: str, stage: Callable[[], dict[str, str]], results: list[StageResult]) -> str | None:
    """Run one stage, append what it saw, and return the reason where it rejects."""
    started = time.monotonic()
    try:
        evidence = stage()
        failed = None
    except Rejected as error:
        evidence, failed = {}, str(error)
    results.append(StageResult(name, failed is None, time.monotonic() - started, evidence))
    return failed


def refuse_impossible(races: Sequence[Race], moved_bytes: Sequence[int], limits: DeviceLimits) -> None:
    """Reject a time that moving the task's bytes alone cannot take on this machine, with the arithmetic."""
    for race, moved in zip(races, moved_bytes, strict=True):
        if moved < _LEAST_MOVED:
            continue
        copy = limits.copy_rate(moved)
        # The slowest block: on a busy machine a block of short sprints can come out at nothing.
        us = max(next(a.samples_us for a in race.arms if a.name == "candidate"))
        if us < moved / (copy * _ABOVE_COPY) / 1e3:
            raise Rejected(
                f"{race.case}: {us:.2f} us a call would move {moved} bytes at {moved / us / 1e3:.0f} GB/s; "
                f"this machine copies at most at {copy:.0f}, with {_ABOVE_COPY}x allowed for caches"
            )


def _cache_bytes(device: str) -> int:
    return measure(device).cache_bytes


def _hidden(folder: Path) -> tuple[str, ...]:
    """Return what a candidate must not see: the whole run where the task is part of one, else the task; the cache.

    Winners of other runs and the rivals' compiled code lie in the cache.
    """
    return str(folder.parent.parent if folder.parent.name == "tasks" else folder), str(cache_dir().resolve())
