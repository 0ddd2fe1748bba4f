"""Search many tasks at once: the next work is always where the most whole-model gain is left for each second of it.

Proposers are asked before anything else: a task that nobody has a candidate for opens no judge and times no rival.
What was learned of a proposer on one task counts on all; a task is left when it is at its floor, has nothing new, or
can no longer move the model. Verdicts come from an executor, on as many devices as it has; the ledger has one writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..extractor.task import Task
from ..models.errors import InputError
from .candidate import Candidate, Proposer
from .court import Pace
from .decision import headroom
from .domain import Shapes
from .executors import Executor
from .ledger import Ledger
from .schedule import Option, Rates, best
from .search import Explaining, Hunt, Waiting
from .verdict import Race, Verdict
from .winner import Winner

# What opening a task's judge takes, until some were opened.
_USUAL_OPENING_S = 6.0
_LOOK_AGAIN_S = 0.5


@dataclass(frozen=True)
class Plan:
    """One task to search. proposers: made when the task is first worked on. step_us: the model's step, eager.

    asking: makes proposers that want the rivals' times before they begin; a task that has some is timed in any case.
    """

    folder: Path
    task: Task
    proposers: Callable[[], Sequence[Proposer]]
    pace: Pace
    step_us: float
    asking: Callable[[Race], Sequence[Proposer]] | None = None


@dataclass(frozen=True)
class Row:
    """How one task stands, for whoever watches.

    best: against the best rival, None where nothing was accepted. left_us, gained_us: of the model's step, step_us.
    """

    task: str
    state: str
    tried: int
    accepted: int
    kept: int
    best: float | None
    left_us: float
    gained_us: float
    step_us: float


@dataclass(frozen=True)
class Standing:
    """How the whole search stands. seconds, budget_s: passed, and allowed. doing: what was begun last.

    spent: on a language model, in words, empty where none is asked.
    """

    rows: tuple[Row, ...]
    seconds: float
    budget_s: float
    doing: str
    spent: str = ""

    @property
    def predicted(self) -> float:
        """How many times faster the whole model would be with the best kernels so far, by Amdahl."""
        step_us = max((row.step_us for row in self.rows), default=0.0)
        left = step_us - sum(row.gained_us for row in self.rows)
        return step_us / left if left > 0 else 1.0


@runtime_checkable
class Watching(Protocol):
    """A listener that wants the whole standing, not one line of it."""

    def watch(self, standing: Standing) -> None: ...


class _Known:
    """What a Hunt asks of a judge, answered from what the executor said when the task was opened."""

    tried: Sequence[Shapes] = ()

    def baseline(self) -> Race:
        raise NotImplementedError("baselines of a campaign come from its executor")

    def verdict(self, source: str) -> Verdict:
        raise NotImplementedError("verdicts of a campaign come from its executor")


class Lane:
    """One task's search as the campaign sees it.

    hunt: None until the task is first worked on. slot: where it is judged, once asked there. ended: its winner.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.hunt: Hunt | None = None
        self.known = _Known()
        self.proposers: list[Proposer] = []
        self.slot: int | None = None
        self.opened = False
        self.busy = False
        self.ended: Winner | None = None
        self._asleep: dict[int, int] = {}
        self._held: dict[int, Candidate] = {}

    def begin(self, ledger: Ledger) -> bool:
        """Look at the task for the first time; return whether its judge is needed.

        That is where somebody has a candidate, or asks for one that takes time to come, or has won already.
        """
        self.hunt = Hunt(self.plan.task, self.plan.folder, ledger, self.known)
        self.proposers = list(self.plan.proposers())
        if self.plan.asking is not None or self.hunt.parent is not None:
            return True
        for proposer in self.proposers:
            candidate = self.next(proposer)
            if candidate is not None:
                self._held[id(proposer)] = candidate
                return True
            if isinstance(proposer, Waiting) and proposer.waiting:
                return True
            self.sleep(proposer)
        return False

    def next(self, proposer: Proposer) -> Candidate | None:
        """Return what a proposer has for the task that was not judged yet, None where it has nothing."""
        assert self.hunt is not None
        return self._held.pop(id(proposer), None) or self.hunt.fresh(proposer)

    @property
    def left_us(self) -> float:
        """What a step of the model would gain with the task at its floor, from its best kernel so far."""
        task = self.plan.task
        if self.hunt is None or self.hunt.baseline is None:
            return max(task.gain_us, 0.05 * task.eager_us)
        slack = headroom(task, self.hunt.baseline, self.hunt.parent.verdict if self.hunt.parent else None)
        return task.eager_us * 0.05 if slack is None else max(task.floor_us * (slack - 1.0), 0.0)

    def wakeful(self) -> list[Proposer]:
        """Return the proposers that may have something; one that had nothing is asked again once anything was accepted.

        One whose answers take time is asked again when an answer has come.
        """
        accepted = self._accepted()
        return [
            p for p in self.proposers if self._asleep.get(id(p)) != accepted or (isinstance(p, Waiting) and p.answered)
        ]

    def ask_ahead(self) -> None:
        """Let proposers whose answers take time ask for them before they are needed."""
        for proposer in self.proposers:
            if isinstance(proposer, Waiting) and self.hunt is not None:
                proposer.ask_ahead(self.hunt.history)

    def sleep(self, proposer: Proposer) -> None:
        self._asleep[id(proposer)] = self._accepted()

    def _accepted(self) -> int:
        return sum(a.accepted for a in self.hunt.history) if self.hunt is not None else 0

    def row(self) -> Row:
        history = self.hunt.history if self.hunt is not None else []
        parent = self.hunt.parent if self.hunt is not None else None
        won = parent.verdict.speedup if parent is not None and parent.verdict is not None else None
        state = "done" if self.ended is not None else "at work" if self.busy else "open" if self.opened else "waiting"
        accepted, kept = sum(a.accepted for a in history), sum(a.kept for a in history)
        best_so_far = won.median if won is not None else None
        name = self.plan.task.name
        left = self.left_us
        task = self.plan.task
        gained = max(task.eager_us - task.floor_us - left, 0.0) if parent is not None else 0.0
        return Row(name, state, len(history), accepted, kept, best_so_far, left, gained, self.plan.step_us)

    def finish(self) -> Winner:
        assert self.hunt is not None
        said = [f"{p.name}: {p.reason}" for p in self.proposers if isinstance(p, Explaining) and p.reason]
        self.ended = self.hunt.winner(said)
        return self.ended


class Campaign:
    """Searches the tasks of `plans` for `budget_s` seconds. done: given each task's name and winner as it ends.

    refused: given a task's name and why its judge would not open. watch: told how the search stands.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        ledger: Ledger,
        executor: Executor,
        budget_s: float,
        done: Callable[[Task, Winner], None],
        refused: Callable[[Task, str], None],
        watch: Callable[[Standing], None] = lambda standing: None,
        least_gain: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lanes = [Lane(plan) for plan in plans]
        self.rates = Rates(ledger.attempts())
        self._ledger, self._executor, self._budget_s = ledger, executor, budget_s
        self._done, self._refused, self._watch = done, refused, watch
        self._least_gain, self._clock = least_gain, clock
        self._openings: list[float] = []
        self._under_way: dict[Future[Any], Callable[[Future[Any]], None]] = {}
        self._started = clock()

    def run(self) -> None:
        """Work until the time is over, or nobody has anything new; every task that was opened ends with a winner.

        A verdict under way when the time is over is waited for: it is nearly paid.
        """
        while True:
            self._begin_what_fits()
            if self._under_way:
                finished, _ = wait(self._under_way, timeout=_LOOK_AGAIN_S, return_when=FIRST_COMPLETED)
                for future in finished:
                    self._under_way.pop(future)(future)
            elif not self._wait_for_answers():
                break
        for lane in self.lanes:
            if lane.ended is None and lane.opened:
                self._end(lane)

    def _begin_what_fits(self) -> None:
        taken = {lane.slot for lane in self.lanes if lane.busy}
        for slot in range(self._executor.slots):
            while slot not in taken and (chosen := self._choose(slot)) is not None:
                lane, proposer = chosen
                if self._begin(lane, proposer, slot):
                    break

    def _over(self) -> bool:
        return self._clock() - self._started >= self._budget_s

    def _choose(self, slot: int) -> tuple[Lane, Proposer | None] | None:
        """Return what a free slot does next: a lane, and its proposer, None to open the lane's judge first."""
        offers: dict[Option, tuple[Lane, Proposer | None]] = {}
        over = self._over()
        for lane in self.lanes:
            if lane.ended is not None or lane.busy or lane.slot not in (None, slot):
                continue
            # A baseline that took all the time was for nothing without one try.
            if over and (lane.hunt is None or lane.hunt.history):
                continue
            if lane.opened and self._finished(lane):
                self._end(lane)
                continue
            for option, proposer in self._options(lane):
                offers.setdefault(option, (lane, proposer))
        chosen = best(list(offers))
        return offers[chosen] if chosen is not None else None

    def _options(self, lane: Lane) -> Iterator[tuple[Option, Proposer | None]]:
        task = lane.plan.task
        seconds = self.rates.seconds(task.fingerprint)
        if not lane.opened or lane.hunt is None:
            opening = sum(self._openings) / len(self._openings) if self._openings else _USUAL_OPENING_S
            yield Option(task.name, "", lane.left_us, 0.5, opening + seconds), None
            return
        for proposer in lane.wakeful():
            chance = self.rates.chance(proposer.name, lane.hunt.history)
            yield Option(task.name, proposer.name, lane.left_us, chance, seconds), proposer

    def _finished(self, lane: Lane) -> bool:
        """Whether a task is at its floor, can no longer move the model, or has nobody left with anything new."""
        assert lane.hunt is not None
        if lane.hunt.at_floor():
            return True
        if lane.hunt.history and lane.left_us < self._least_gain * lane.plan.step_us:
            return True
        return not lane.wakeful() and not any(isinstance(p, Waiting) and p.waiting for p in lane.proposers)

    def _begin(self, lane: Lane, proposer: Proposer | None, slot: int) -> bool:
        """Start one piece of work; return whether there was any."""
        if proposer is None or lane.hunt is None:
            self._tell(f"{lane.plan.task.name}: who has a candidate")
            if not lane.begin(self._ledger):
                self._end(lane)
                return False
            self._tell(f"{lane.plan.task.name}: the baseline, eager and Inductor's code")
            self._open(lane, slot)
            return True
        candidate = lane.next(proposer)
        if candidate is None:
            lane.sleep(proposer)
            return False
        self._tell(f"{lane.plan.task.name}: {lane.hunt.standing()}, now {proposer.name}")
        self._judge(lane, candidate, slot)
        return True

    def _open(self, lane: Lane, slot: int) -> None:
        assert lane.hunt is not None
        hunt, lane.slot, lane.busy = lane.hunt, slot, True
        begun, folder = self._clock(), lane.plan.folder

        def opened(future: Future[Any]) -> None:
            try:
                lane.known.tried = future.result()
            except InputError as error:  # the judge refuses a task that proves nothing, and says what it lacks
                self.lanes.remove(lane)
                self._refused(lane.plan.task, str(error))
                return
            if hunt.baseline is None:
                self._under_way[self._executor.baseline(slot, folder)] = begin
            else:
                begin(None)

        def begin(measured: Future[Any] | None) -> None:
            baseline = hunt.baseline if measured is None else hunt.timed(measured.result())
            assert baseline is not None
            lane.busy, lane.opened = False, True
            if lane.plan.asking is not None:
                lane.proposers += lane.plan.asking(baseline)
            lane.ask_ahead()
            self._openings.append(self._clock() - begun)

        self._under_way[self._executor.open(slot, folder, lane.plan.pace)] = opened

    def _judge(self, lane: Lane, candidate: Candidate, slot: int) -> None:
        assert lane.hunt is not None
        hunt, lane.busy = lane.hunt, True
        number = hunt.begin(candidate)
        lane.ask_ahead()
        judging = self._executor.verdict(slot, lane.plan.folder, candidate.source)

        def judged(future: Future[Any]) -> None:
            lane.busy = False
            self.rates.note(hunt.finish(number, candidate, future.result()))
            self._tell(f"{lane.plan.task.name}: {hunt.standing()}")

        self._under_way[judging] = judged

    def _wait_for_answers(self) -> bool:
        """Wait a moment for a proposer whose answers are on their way; return whether there is one."""
        waiting = (
            p
            for lane in self.lanes
            if lane.ended is None
            for p in lane.proposers
            if isinstance(p, Waiting) and p.waiting
        )
        first = next(waiting, None)
        if first is None or self._over():
            return False
        first.wait(_LOOK_AGAIN_S)
        return True

    def _end(self, lane: Lane) -> None:
        winner = lane.finish()
        if lane.slot is not None:
            self._executor.leave(lane.slot, lane.plan.folder)
        self._done(lane.plan.task, winner)

    def _tell(self, doing: str) -> None:
        rows = tuple(lane.row() for lane in self.lanes)
        self._watch(Standing(rows, self._clock() - self._started, self._budget_s, doing))
