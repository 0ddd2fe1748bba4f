"""Compile the templates of every task of a run for a GPU, which need not be there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..extractor.load_task import load_task
from ..extractor.task import Extraction, task_folder
from ..models.record import Record
from ..optimizer.codegen.chain import lower_chain
from ..optimizer.codegen.lower import Unsupported
from ..optimizer.codegen.triton_check import Checked, Screen, check
from ..optimizer.codegen.triton_compile import Target
from ..optimizer.proposers.template import examples


@dataclass(frozen=True)
class TaskCheck(Record):
    """What the settings of one task compile to on `target`. reason: why there is none, None if there are some."""

    task: str
    target: Target
    settings: tuple[Checked, ...]
    reason: str | None


def check_run(folder: Path) -> Iterator[TaskCheck]:
    """Yield every task of a run in its order. It only reads: a run that is under way may be looked at.

    Raises RecordError where there are no tasks, EnvironmentMissing where Triton or its disassembler is not installed.
    """
    target = Target.here() or Target()
    extraction = Extraction.load(folder / "extraction.json")
    for rank, task in enumerate(extraction.tasks):
        screen = Screen(task, target)
        loaded = load_task(task_folder(folder / "tasks", rank, task))
        try:
            chain = lower_chain(loaded.reference, examples(loaded))
        except Unsupported as why:
            yield TaskCheck(task.name, target, (), str(why))
            continue
        yield TaskCheck(task.name, target, tuple(check(task, chain, screen)), None)
