"""`hotswap optimize RUN`: search for faster kernels for a run's tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from ..models.errors import RecordError
from .console import note, print_json, progress, results
from .options import SEARCH_SETTINGS, examples, json_option, settings_options
from .places import find_run
from .request import Request, resumable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..optimizer.winner import Winner

EXAMPLES = examples("hotswap optimize last --budget 10m", "hotswap optimize runs/minilm --json")


@click.command(epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@settings_options(*SEARCH_SETTINGS, config=False)
@json_option
def command(run: str, as_json: bool, **flags: Any) -> None:
    """Search for faster kernels for the tasks of RUN, which `hotswap extract` made; needs no model.

    Every attempt goes before the judge and into the ledger (`hotswap show RUN:TASK`); a task that has its winner is not
    searched again. `hotswap integrate RUN` goes on from here.
    """
    from ..extractor.task import Extraction
    from ..integrator.run_directory import RunDirectory
    from ..integrator.search_tasks import search_tasks
    from ..integrator.winners import load_winners

    with resumable(RunDirectory.open(find_run(run))) as directory, progress() as bars:
        if not directory.done("extract"):
            raise RecordError(f"{directory.folder}: has no tasks yet; `hotswap resume {directory.folder}` makes them")
        started = time.monotonic()
        settings = Request.of_run(directory.run, flags).settings
        search_tasks(directory, Extraction.load(directory.extraction), settings, bars)
        directory.finish("optimize", time.monotonic() - started)
    winners = load_winners(directory.folder)
    if as_json:
        print_json({"run": str(directory.folder), "winners": [w.to_dict() for w in winners]})
        return
    print_winners(winners)
    note(f"next     hotswap integrate {directory.folder}")


def print_winners(winners: Sequence[Winner]) -> None:
    """Print how each task ended and why."""
    from rich.table import Table

    table = Table("task", "ends with", "attempts", "why", box=None, pad_edge=False)
    for winner in winners:
        table.add_row(winner.task, winner.choice, str(winner.attempts), winner.reason)
    results().print(table)
