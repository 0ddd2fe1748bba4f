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
    for rank, task in enumerate(Extraction.load(folder / "extraction.json").tasks):
        yield check_task(task_folder(folder / "tasks", rank, task))


def check_task(folder: Path) -> TaskCheck:
    """Return what the loop nests of one task compile to; raises as `check_run` does."""
    target = Target.here() or Target()
    loaded = load_task(folder)
    screen = Screen(loaded.task, target)
    try:
        chain = lower_chain(loaded.reference, examples(loaded))
    except Unsupported as why:
        return TaskCheck(loaded.task.name, target, (), str(why))
    return TaskCheck(loaded.task.name, target, tuple(check(loaded.task, chain, screen)), None)
