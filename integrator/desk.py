"""The desk where outside agents work on a run: read its tasks, put candidates before the judge, see what was tried.

Commands and the MCP server are two ways to it. Several agents at once are safe: whoever holds the ledger judges, the
others wait their turn, so that no timing disturbs another. Nothing here changes the judge, the ledger's past, a
reference or a task; a candidate is text, and only the judge runs it.
"""

from __future__ import annotations

import ast
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..extractor.task import Task
from ..models.errors import CandidateRejected, RecordError, RecordLocked, SpecError
from ..models.suggest import did_you_mean
from ..optimizer.attempt import Attempt
from ..optimizer.candidate import Candidate
from ..optimizer.domain import Shapes
from ..optimizer.judge.judge import Judge
from ..optimizer.ledger import Ledger
from ..optimizer.llm.novelty import shape_of
from ..optimizer.llm.prompt import outcome
from ..optimizer.search import Hunt
from ..optimizer.verdict import Race, Verdict
from ..optimizer.winner import Winner
from . import run_lock
from .run_directory import load_run

TURN_S = 900.0
_LOOK_AGAIN_S = 0.2
_one_thread = threading.Lock()


@dataclass(frozen=True)
class Tried:
    """What became of a candidate. known: it was judged before, and nothing was run. winner: how the task ends now."""

    attempt: Attempt
    known: bool
    winner: Winner | None = None

    @property
    def verdict(self) -> Verdict:
        assert self.attempt.verdict is not None
        return self.attempt.verdict


class Desk:
    """One run's desk, or that of a task that stands alone. turn_s: how long to wait while others judge.

    block_s: seconds of a timed block. Raises RecordError where `folder` is neither a run directory with tasks nor a
    task's.
    """

    def __init__(self, folder: Path, *, turn_s: float = TURN_S, block_s: float = 0.2) -> None:
        self.folder = folder
        self._turn_s, self._block_s = turn_s, block_s
        if not self.task_folders():
            raise RecordError(f"{folder}: has no tasks; `hotswap extract` or `hotswap run` makes them")

    def task_folders(self) -> list[Path]:
        """Return the folders of the tasks, most attainable gain first; the folder itself where it is a task."""
        if (self.folder / "task.json").exists():
            return [self.folder]
        return sorted(p.parent for p in (self.folder / "tasks").glob("*/task.json"))

    def find(self, name: str) -> Path:
        """Return a task's folder by its name, with or without the rank; raise SpecError naming the nearest."""
        folders = self.task_folders()
        for folder in folders:
            if name in (folder.name, folder.name.partition("-")[2]):
                return folder
        names = [f.name.partition("-")[2] for f in folders]
        raise SpecError(f"{name}: no such task in {self.folder}{did_you_mean(name, names)}")

    def tasks(self) -> list[dict[str, Any]]:
        """Return what there is to work on, as plain data: gain left, floor, and how far others came."""
        listed = []
        for folder in self.task_folders():
            task = Task.load(folder / "task.json")
            attempts = self.attempts(folder)
            best = max((a for a in attempts if a.kept), key=lambda a: a.number, default=None)
            won = best.verdict.speedup if best is not None and best.verdict is not None else None
            listed.append(
                {
                    "task": folder.name,
                    "ops": list(task.ops),
                    "kind": task.kind,
                    "device": task.device,
                    "us_a_step": round(task.eager_us, 2),
                    "floor_us_a_step": round(task.floor_us, 2),
                    "attainable_us_a_step": round(task.gain_us, 2),
                    "model_at_floor": round(task.ceiling, 4),
                    "attempts": len(attempts),
                    "best_against_best_rival": round(won.median, 3) if won is not None else None,
                }
            )
        return listed

    def read(self, name: str) -> dict[str, Any]:
        """Return one task whole: its record, its reference, the best kernel so far and what a candidate must be."""
        folder = self.find(name)
        task = Task.load(folder / "task.json")
        best = folder / "kernel.py"
        return {
            "task": folder.name,
            "record": task.to_dict(),
            "reference": (folder / "reference.py").read_text(encoding="utf-8"),
            "best": best.read_text(encoding="utf-8") if best.exists() else None,
            "contract": contract(task),
        }

    def attempts(self, folder: Path) -> tuple[Attempt, ...]:
        """Return every attempt on a task, in the order they began."""
        ledger = self.folder / "ledger.db"
        if not ledger.exists():
            return ()
        with Ledger.read(ledger) as reading:
            return reading.attempts(Task.load(folder / "task.json").fingerprint)

    def history(self, name: str) -> list[dict[str, Any]]:
        """Return every attempt on a task as plain data: who, from what, how it ended and why."""
        return [
            {
                "number": a.number,
                "hash": a.source_hash[:12],
                "parent": a.parent[:12] if a.parent else None,
                "by": a.proposer,
                "kept": a.kept,
                "us_a_call": a.median_us,
                "outcome": outcome(a),
            }
            for a in self.attempts(self.find(name))
        ]

    def attempt(self, name: str, source: str, *, by: str = "agent", parent: str | None = None) -> Tried:
        """Put a candidate before the judge and on record, whatever the verdict; one judged before is not judged again.

        by: who offers it. parent: the beginning of the hash it was made from. Raises RecordLocked where the run is
        being searched, or no turn came in time.
        """
        return self._attempt(self.find(name), source, by, parent, submit=False)

    def submit(self, name: str, source: str, *, by: str = "agent", parent: str | None = None) -> Tried:
        """As `attempt`, and make the task end with the best kernel on record; `hotswap integrate` takes it from there.

        Raises CandidateRejected, with the judge's reason, where the candidate was not accepted.
        """
        return self._attempt(self.find(name), source, by, parent, submit=True)

    def _attempt(self, folder: Path, source: str, by: str, parent: str | None, *, submit: bool) -> Tried:
        task = Task.load(folder / "task.json")
        with self._turn() as ledger, _WhenAsked(folder, self._block_s) as judge:
            hunt = Hunt(task, folder, ledger, judge)
            known = _known(hunt.history, source, ledger)
            if known is None:
                hunt.attempt(Candidate(source, by, _whole_hash(hunt.history, parent), {}))
            tried = Tried(known or hunt.history[-1], known is not None)
            if not submit:
                return tried
            if not tried.verdict.accepted:
                raise CandidateRejected(f"{folder.name}: rejected at {tried.verdict.stage}: {tried.verdict.reason}")
            winner = hunt.winner(())
            # Before the search has ended, what is kept on record is what it goes on from; a winner would end it.
            if "optimize" in load_run(self.folder).stages:
                winner.save(self.folder / "winners" / f"{task.name}.json")
            return Tried(tried.attempt, tried.known, winner)

    @contextmanager
    def _turn(self) -> Iterator[Ledger]:
        """Wait for the ledger, whose one writer is the one who judges."""
        deadline = time.monotonic() + self._turn_s
        # The ledger's lock is one of processes; threads of one (an MCP server's) need another.
        if not _one_thread.acquire(timeout=self._turn_s):
            raise RecordLocked(
                f"{self.folder}: other agents judge here, and {self._turn_s:g} s brought no turn; try again"
            )
        try:
            with self._ledger(deadline) as ledger:
                yield ledger
        finally:
            _one_thread.release()

    def _ledger(self, deadline: float) -> Ledger:
        while True:
            owner = run_lock.holder(self.folder)
            if owner is not None and owner != os.getpid():
                raise RecordLocked(f"{self.folder}: process {owner} searches it now; try again when it has ended")
            try:
                return Ledger(self.folder / "ledger.db")
            except RecordLocked:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_LOOK_AGAIN_S)


class _WhenAsked:
    """A judge that starts when it is first asked something, so that what is on record costs nothing to look up."""

    def __init__(self, folder: Path, block_s: float) -> None:
        self._folder, self._block_s = folder, block_s
        self._started = ExitStack()
        self._judge: Judge | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._started.close()

    @property
    def tried(self) -> Sequence[Shapes]:
        return self._now().tried

    def baseline(self) -> Race:
        return self._now().baseline()

    def verdict(self, source: str) -> Verdict:
        return self._now().verdict(source)

    def _now(self) -> Judge:
        if self._judge is None:
            self._judge = self._started.enter_context(Judge(self._folder, block_s=self._block_s))
        return self._judge


def contract(task: Task) -> str:
    """Return in words what a candidate for the task must be."""
    gives = "the output tensor" if task.outputs == 1 else f"a tuple of {task.outputs} tensors"
    return (
        f"One Python file with `def kernel({', '.join(task.inputs)})` at top level. It returns {gives}, with the "
        "dtype, shape and strides the reference gives, in new memory; inputs stay as they are; nothing is kept between "
        "calls. "
        "Sizes of 1, odd, prime and empty ones, strided and offset inputs are tried as well as the recorded shapes. "
        'Optional literals: CONSTRAINTS = {"contiguous": [names of inputs that must be dense]}; STATIC_WEIGHTS = True '
        "with `def prepare(...)` of the same arguments, whose result reaches `kernel(..., *, packed)`. "
        "No network, no files, no processes. On a CPU, `from hotswap.optimizer.native import compile_cpp` builds C++ "
        '(`extern "C"` functions, called through ctypes).'
    )


def _known(history: Sequence[Attempt], source: str, ledger: Ledger) -> Attempt | None:
    """Return the attempt that judged this very file, or the same program written differently."""
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    shape = shape_of(source)
    return next((a for a in reversed(history) if shape_of(ledger.source(a.source_hash)) == shape), None)


def _whole_hash(history: Sequence[Attempt], beginning: str | None) -> str | None:
    if beginning is None:
        return None
    found = sorted({a.source_hash for a in history if a.source_hash.startswith(beginning)})
    if len(found) != 1:
        raise SpecError(f"parent {beginning!r}: {len(found)} candidates begin with it; the history lists their hashes")
    return found[0]
