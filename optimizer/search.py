"""Search one task: candidates from proposers in turn before the judge, each on record.

The rivals are timed once there is a candidate. The parent changes only when a gain clears the noise. What the ledger
already holds from this environment is not repeated, so a search that was killed goes on where it was.
"""

from __future__ import annotations

import ast
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from ..extractor.task import Task
from ..models.environment import environment
from ..models.progress import Progress, silent
from ..models.record import write_text
from .attempt import Attempt
from .candidate import Candidate, Proposer
from .decision import AT_FLOOR, decide, headroom, median_us, replaces
from .domain import Shapes, verified_domain
from .ledger import Ledger
from .verdict import Race, Verdict
from .winner import Winner

# A proposer that offers this many known sources in a row has nothing new.
REPEATS_ALLOWED = 100
# So long after the baseline a first candidate is waited for, even when the time is over already.
_GRACE_S = 10.0


class Judging(Protocol):
    """What the search asks of a judge; `optimizer.judge.Judge` is one. tried: input shapes beyond the recorded ones."""

    @property
    def tried(self) -> Sequence[Shapes]: ...
    def baseline(self) -> Race: ...
    def verdict(self, source: str) -> Verdict: ...


@runtime_checkable
class Explaining(Protocol):
    """A proposer that can say why it has nothing to offer; reason: None while it has."""

    @property
    def name(self) -> str: ...
    @property
    def reason(self) -> str | None: ...


@runtime_checkable
class Waiting(Protocol):
    """A proposer whose answers take time: while `waiting`, nothing now does not mean nothing more.

    answered: whether an answer came since it was last asked. ask_ahead: begin what it would need for its next ones.
    """

    @property
    def waiting(self) -> bool: ...
    @property
    def answered(self) -> bool: ...
    def ask_ahead(self, history: Sequence[Attempt]) -> None: ...
    def wait(self, seconds: float) -> None: ...


def search(
    folder: Path,
    *,
    ledger: Ledger,
    judge: Judging,
    proposers: Sequence[Proposer],
    seconds: float,
    progress: Progress = silent,
) -> Winner:
    """Return how the task in `folder` ends: our kernel, Inductor's code, or eager left alone, with a one-line reason.

    Stops at the floor, after `seconds` (baseline included; one verdict may overrun), or when nobody has anything new.
    The rivals are timed when somebody has a candidate, or has asked for one that takes time to come.
    """
    started = time.monotonic()
    task = Task.load(folder / "task.json")
    progress(task.name, 0.0, seconds, "who has a candidate")
    hunt = Hunt(task, folder, ledger, judge)
    waiting = deque(proposers)
    ready = 0.0
    while waiting and not hunt.at_floor():
        passed = time.monotonic() - started
        if passed >= seconds and (hunt.history or passed >= ready + _GRACE_S):
            break  # a baseline that took all the time was for nothing without one try
        proposer = waiting.popleft()
        progress(task.name, passed, seconds, f"{hunt.standing()}, next {proposer.name}")
        candidate = hunt.fresh(proposer)
        if candidate is not None:
            waiting.append(proposer)
            hunt.rivals()
            if not hunt.at_floor():
                hunt.attempt(candidate)
        elif isinstance(proposer, Waiting) and proposer.waiting:
            waiting.append(proposer)
            if hunt.baseline is None:  # while the answers are on their way
                hunt.rivals()
                ready = time.monotonic() - started
            if all(isinstance(p, Waiting) and p.waiting for p in waiting):
                proposer.wait(1.0)
    progress(task.name, seconds, seconds, hunt.standing())
    return hunt.winner([f"{p.name}: {p.reason}" for p in proposers if isinstance(p, Explaining) and p.reason])


class Hunt:
    """The state of one search: the rivals' times, what was tried, and the parent of what comes next.

    baseline: the race of the rivals, None until it is on record: nobody need time what nobody would replace.
    """

    def __init__(self, task: Task, folder: Path, ledger: Ledger, judge: Judging) -> None:
        self.task = task
        self._folder = folder
        self._ledger = ledger
        self._judge = judge
        self._environment = environment()
        self.baseline: Race | None = ledger.baseline(task, self._environment)
        # Times of another machine or toolchain say nothing here: such attempts are made again.
        self.history = [a for a in ledger.finished(task.fingerprint) if a.environment == self._environment]
        self.parent: Attempt | None = next((a for a in reversed(self.history) if a.kept), None)
        self._seen = {a.source_hash for a in self.history}

    def rivals(self) -> Race:
        """Return the race of the rivals, run now where none is on record."""
        return self.baseline if self.baseline is not None else self.timed(self._judge.baseline())

    def timed(self, baseline: Race) -> Race:
        """Put the race of the rivals on record, and return it."""
        self._ledger.set_baseline(self.task, baseline, self._environment)
        self.baseline = baseline
        return baseline

    def at_floor(self) -> bool:
        """Whether the task runs at its floor already; False while nothing was timed."""
        if self.baseline is None:
            return False
        slack = headroom(self.task, self.baseline, self.parent.verdict if self.parent else None)
        return slack is not None and slack <= AT_FLOOR

    def fresh(self, proposer: Proposer) -> Candidate | None:
        """Return the proposer's next candidate that was not judged yet, None when it has none."""
        for _ in range(REPEATS_ALLOWED):
            candidate = proposer.propose(self.task, self.history)
            if candidate is None or candidate.hash not in self._seen:
                return candidate
        return None

    def attempt(self, candidate: Candidate) -> None:
        """Put a candidate before the judge and on record; keep it as the parent where its gain clears the noise."""
        self.rivals()
        number = self.begin(candidate)
        self.finish(number, candidate, self._judge.verdict(candidate.source))

    def begin(self, candidate: Candidate) -> int:
        """Put on record that a candidate is being judged, and return the attempt's number."""
        self._seen.add(candidate.hash)
        return self._ledger.begin(self.task, candidate, self._environment)

    def finish(self, number: int, candidate: Candidate, verdict: Verdict) -> Attempt:
        """Put the verdict on record; keep the candidate as the parent where its gain clears the noise."""
        kept = replaces(verdict, self.parent.verdict if self.parent else None)
        done = self._ledger.finish(number, verdict, median_us=median_us(verdict), kept=kept)
        self.history.append(done)
        if kept:
            self.parent = done
            write_text(self._folder / "kernel.py", candidate.source)
        return done

    def standing(self) -> str:
        won = self.parent.verdict.speedup if self.parent and self.parent.verdict else None
        return f"{len(self.history)} tried" + (f", best {won.median:.2f}x" if won else "")

    def winner(self, refusals: Sequence[str]) -> Winner:
        """Return how the task ends now. refusals: what proposers say of why they had nothing."""
        decision = decide(self.task, self.baseline, self.parent, self.history, refusals)
        kernel = self.parent if decision.choice == "kernel" else None
        source = self._ledger.source(kernel.source_hash) if kernel else None
        return Winner(
            task=self.task.name,
            fingerprint=self.task.fingerprint,
            choice=decision.choice,
            proposer=kernel.proposer if kernel else None,
            source=source,
            domain=verified_domain(self.task, self._judge.tried, int(self._environment["threads"])) if kernel else None,
            verdict=kernel.verdict if kernel else None,
            static_weights=source is not None and packs_weights(source),
            attempts=len(self.history),
            reason=decision.reason,
        )


def packs_weights(source: str) -> bool:
    """Whether a candidate file declares `STATIC_WEIGHTS = True` at top level."""
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "STATIC_WEIGHTS" for t in node.targets)
        and isinstance(node.value, ast.Constant)
        and node.value.value is True
        for node in ast.parse(source).body
    )
