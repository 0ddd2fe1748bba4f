"""`hotswap extract MODEL`: cut hot regions out as standalone tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import note, print_json, progress, results
from .options import MODEL_SETTINGS, examples, json_option, model_options, settings_options
from .request import Request, resumable

if TYPE_CHECKING:
    from ..extractor.task import Extraction, Skipped, Task

EXAMPLES = examples(
    "hotswap extract ./all-MiniLM-L6-v2 --batch 8 --seq-len 128 --out runs/minilm",
    "hotswap extract gpt2@tiny --top 3 --json",
)


@click.command(epilog=EXAMPLES)
@click.argument("model")
@settings_options(*MODEL_SETTINGS, "top", "out")
@model_options
@json_option
def command(model: str, as_json: bool, **flags: Any) -> None:
    """Profile MODEL and cut its hot regions out as tasks, those with the most to gain first.

    A task is a folder that stands alone: `python reference.py` runs it, `hotswap show` explains it. What is hot but
    cannot become a task is listed with the reason. `hotswap optimize RUN` goes on from here.
    """
    from ..integrator.optimize import extract_stage, profile_stage

    request = Request.from_flags(model, flags)
    workload = request.workload()
    with resumable(request.new_directory()) as directory, progress() as bars:
        started = time.monotonic()
        profile = profile_stage(directory, workload, bars)
        profiled = time.monotonic()
        directory.finish("profile", profiled - started)
        extraction = extract_stage(directory, workload, profile, request.settings, bars)
        directory.finish("extract", time.monotonic() - profiled)
    if as_json:
        print_json({"run": str(directory.folder), "extraction": extraction.to_dict()})
        return
    print_extraction(extraction, directory.folder)


def print_extraction(extraction: Extraction, run: Path) -> None:
    """Print the tasks, best first, and what did not become one."""
    print_tasks(extraction.tasks)
    if extraction.skipped:
        results().print()
        print_skipped(extraction.skipped)
    for line in (*extraction.notes, *(f"graph break: {b}" for b in extraction.breaks)):
        note(line)
    note(f"{100 * extraction.covered:.0f}% of the step lies in {extraction.graphs} captured graph(s)")
    note(f"next     hotswap optimize {run}")


def print_tasks(tasks: Sequence[Task]) -> None:
    from rich.table import Table

    table = Table("#", "task", "in", "places", "us", "share", "floor us", "model at floor", box=None, pad_edge=False)
    for rank, task in enumerate(tasks):
        table.add_row(
            str(rank),
            task.name,
            task.sites[0].module if task.sites else "-",
            str(len(task.sites)),
            f"{task.eager_us:.0f}",
            f"{100 * task.share:.1f}%",
            f"{task.floor_us:.0f}",
            f"{task.ceiling:.3f}x",
        )
    results().print(table)


def print_skipped(skipped: Sequence[Skipped]) -> None:
    from rich.table import Table

    table = Table("not a task", "in", "share", "why", box=None, pad_edge=False)
    for what in skipped:
        table.add_row(what.what, what.module, f"{100 * what.share:.1f}%", what.reason)
    results().print(table)
