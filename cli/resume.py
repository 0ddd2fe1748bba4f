"""`hotswap resume RUN`: go on where a run stopped."""

from __future__ import annotations

from typing import Any

import click

from .console import note, progress
from .options import SEARCH_SETTINGS, WHOLE_SETTINGS, examples, json_option, settings_options
from .places import find_run
from .request import Request, command_line, resumable
from .run import print_run

EXAMPLES = examples(
    "hotswap resume last",
    "hotswap resume runs/20261130-101500-minilm --budget 5m",
    "hotswap resume last --salvage",
)


@click.command(epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@settings_options(*SEARCH_SETTINGS, *WHOLE_SETTINGS, config=False)
@click.option("--salvage", is_flag=True, help="First replace a damaged ledger by what is whole of it.")
@json_option
def command(run: str, salvage: bool, as_json: bool, **flags: Any) -> None:
    """Continue RUN after any kind of death, with the settings it was begun with; finished work is not repeated.

    RUN is a run directory, a name under runs/, or `last`.
    """
    from ..integrator.optimize import continue_run
    from ..integrator.run_directory import RunDirectory
    from ..optimizer.ledger import Ledger

    with resumable(RunDirectory.open(find_run(run))) as directory, progress() as bars:
        if salvage:
            saved = Ledger.salvage(directory.ledger)
            note(f"{saved} finished attempts kept; the damaged file is {directory.ledger}.damaged")
        if directory.run.next_stage is None:
            note(f"{directory.folder}: was finished already")
        else:
            request = Request.of_run(directory.run, flags)
            continue_run(directory, request.workload(), request.settings, progress=bars, command=command_line())
    print_run(directory.folder, as_json=as_json)
