"""`hotswap optimize RUN`: search for faster kernels for a run's tasks, or for one task that stands alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..models.errors import Interrupted, RecordError
from .console import note, print_json, progress, results
from .options import SEARCH_SETTINGS, examples, json_option, resolved, settings_options
from .places import find_run
from .request import Request, resumable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..integrator.compile_tasks import TaskCheck
    from ..optimizer.winner import Winner

EXAMPLES = examples(
    "hotswap optimize last --budget 10m",
    "hotswap optimize runs/minilm --compile-only",
    "hotswap optimize gated_norm-task --budget 60s",
)


@click.command(epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@settings_options(*SEARCH_SETTINGS, config=False)
@click.option("--compile-only", is_flag=True, help="Compile GPU candidates, print what they take, and run nothing.")
@json_option
def command(run: str, compile_only: bool, as_json: bool, **flags: Any) -> None:
    """Search for faster kernels for the tasks of RUN, which `hotswap extract` made; needs no model.

    Every attempt goes before the judge and into the ledger (`hotswap show RUN:TASK`); a task that has its winner is not
    searched again. `hotswap integrate RUN` goes on from here. RUN may also be a task folder of `hotswap task new`: its
    ledger, winner.json and kernel.py are then in it, and another search goes on from there.

    With --compile-only nothing is judged and no GPU is needed: each task's loop nests are compiled for this machine's
    GPU, or where there is none for compute capability 9.0, and listed with registers, spills and shared memory.
    """
    from ..integrator.compile_tasks import check_run, check_task

    alone = (Path(run) / "task.json").is_file()
    if compile_only:
        checked = iter([check_task(Path(run))]) if alone else check_run(find_run(run))
        print_checked(checked, as_json=as_json)
        return
    winners = [search_alone(Path(run), flags)] if alone else search_run(find_run(run), flags)
    if as_json:
        print_json({"run": run, "winners": [w.to_dict() for w in winners]})
        return
    print_winners(winners)
    note(f"next     hotswap task log {run}" if alone else f"next     hotswap integrate {find_run(run)}")


def search_alone(folder: Path, flags: dict[str, Any]) -> Winner:
    """Search one task that stands in no run, and return how it ends."""
    from ..integrator.search_tasks import search_task

    with progress() as bars:
        try:
            return search_task(folder, resolved(flags), bars)
        except KeyboardInterrupt:
            again = f"`hotswap optimize {folder}` goes on from what was tried"
            raise Interrupted(f"interrupted; {again}") from None


def search_run(folder: Path, flags: dict[str, Any]) -> Sequence[Winner]:
    """Search the tasks of a run, mark the stage as done, and return how each task ends."""
    from ..extractor.task import Extraction
    from ..integrator.run_directory import RunDirectory
    from ..integrator.search_tasks import search_tasks
    from ..integrator.winners import load_winners

    with resumable(RunDirectory.open(folder)) as directory, progress() as bars:
        if not directory.done("extract"):
            raise RecordError(f"{directory.folder}: has no tasks yet; `hotswap resume {directory.folder}` makes them")
        started = time.monotonic()
        settings = Request.of_run(directory.run, flags).settings
        search_tasks(directory, Extraction.load(directory.extraction), settings, bars)
        directory.finish("optimize", time.monotonic() - started)
    return load_winners(folder)


def print_checked(tasks: Iterator[TaskCheck], *, as_json: bool) -> None:
    """Print every kernel of every setting, task by task as they are compiled."""
    from rich.table import Table

    if as_json:
        print_json({"tasks": [task.to_dict() for task in tasks]})
        return
    for task in tasks:
        if task.reason is not None:
            results().print(f"{task.task}: {task.reason}\n")
            continue
        table = Table("setting", "kernel", "warps", "registers", "spilled B", "shared B", box=None, pad_edge=False)
        table.title, table.title_justify = task.task, "left"
        table.add_column("not tried because", overflow="fold")
        usual, seen = task.settings[0].knobs, set[str]()
        for setting in task.settings:
            turned = ", ".join(f"{k}={v}" for k, v in setting.knobs.items() if v != usual[k]) or "best guess"
            if setting.build.error is not None:
                table.add_row(turned, "", "", "", "", "", setting.build.error)
            elif setting.build.launches not in seen:
                for kernel in setting.build.kernels:
                    figures = (kernel.warps, kernel.registers, kernel.stack, kernel.shared)
                    table.add_row(turned, kernel.name, *map(str, figures), kernel.trouble(task.target) or "")
            seen.add(setting.build.launches)
        same = len(task.settings) - len({s.build.launches for s in task.settings})
        if same:
            table.caption, table.caption_justify = f"{same} more settings do the same as one above", "left"
        results().print(table)
        results().print()


def print_winners(winners: Sequence[Winner]) -> None:
    """Print how each task ended and why."""
    from rich.table import Table

    table = Table("task", "ends with", "attempts", "why", box=None, pad_edge=False)
    for winner in winners:
        table.add_row(winner.task, winner.choice, str(winner.attempts), winner.reason)
    results().print(table)
