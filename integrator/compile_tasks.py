"""Compile the templates of every task of a run for a GPU, which need not be there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..extractor.load_task import load_task
from ..extractor.task import Extraction, task_folder
from ..models.record import Record
from ..optimizer.codegen.lower import Unsupported, lower
from ..optimizer.codegen.triton_check import Checked, Screen, check
from ..optimizer.codegen.triton_compile import Target
from ..optimizer.proposers.template import examples
from .run_directory import RunDirectory


@dataclass(frozen=True)
class TaskCheck(Record):
    """What the settings of one task compile to on `target`. reason: why there is none, None if there are some."""

    task: str
    target: Target
    settings: tuple[Checked, ...]
    reason: str | None


def check_run(directory: RunDirectory, extraction: Extraction) -> Iterator[TaskCheck]:
    """Yield every task in its order; raise EnvironmentMissing where Triton or its disassembler is not installed."""
    target = Target.here() or Target()
    for rank, task in enumerate(extraction.tasks):
        screen = Screen(task, target)
        loaded = load_task(task_folder(directory.tasks, rank, task))
        try:
            program = lower(loaded.reference, examples(loaded))
        except Unsupported as why:
            yield TaskCheck(task.name, target, (), str(why))
            continue
        yield TaskCheck(task.name, target, tuple(check(task, program, screen)), None)
