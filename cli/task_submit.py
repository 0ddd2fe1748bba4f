"""`hotswap task submit`: offer a candidate as what a task ends with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..models.errors import SpecError
from .console import note
from .options import examples
from .places import find_task, run_of
from .verdict import print_verdict

if TYPE_CHECKING:
    from ..integrator.desk import Desk, Tried
    from ..optimizer.verdict import Verdict

Function = TypeVar("Function", bound=Callable[..., Any])


def read_candidate(path: Path) -> str:
    """Return a candidate's text; raise SpecError where the file is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as text ({error}); expected a Python file") from error


def desk_of(task: str, block_s: float) -> tuple[Desk, str]:
    """Return the desk of a task's run, or of a task that stands alone, and the task's name there."""
    from ..integrator.desk import Desk

    folder = find_task(task)
    return Desk(run_of(folder) or folder, block_s=block_s), folder.name


def offering(function: Function) -> Function:
    """Add what says whose candidate it is and how long it is timed: keywords `who`, `parent` and `block_s`."""
    for option in (
        click.option("--block", "block_s", type=click.FloatRange(min=0.001), default=0.2, help="Seconds of a block."),
        click.option("--parent", metavar="HASH", help="The candidate it was made from, by its hash's beginning."),
        click.option("--as", "who", default="agent", show_default=True, help="Who offers it, as the ledger says."),
    ):
        function = option(function)
    return function


def judged(task: str, source: str, who: str, parent: str | None, block_s: float) -> Verdict:
    """Return the verdict on a candidate, which goes on record."""
    desk, name = desk_of(task, block_s)
    tried = desk.attempt(name, source, by=who, parent=parent)
    _say_known(tried)
    return tried.verdict


def _say_known(tried: Tried) -> None:
    if tried.known:
        note(f"judged before, as attempt {tried.attempt.number} by {tried.attempt.proposer}; nothing was run")


@click.command(
    "submit", epilog=examples("hotswap task submit last:gelu mine.py", "hotswap task submit TASK mine.py --as me")
)
@click.argument("task", metavar="TASK")
@click.argument("candidate", metavar="CANDIDATE.py", type=click.Path(path_type=Path))
@offering
def submit_command(task: str, candidate: Path, who: str, parent: str | None, block_s: float) -> None:
    """Judge CANDIDATE.py, keep it on record, and let TASK end with the best kernel on record.

    Exits with 1 where it is rejected. `hotswap integrate RUN` puts the winners into the model and measures the whole.
    """
    if run_of(find_task(task)) is None:
        raise SpecError(f"{task}: stands alone, in no run that could take a winner; `hotswap task try` judges it")
    desk, name = desk_of(task, block_s)
    tried = desk.submit(name, read_candidate(candidate), by=who, parent=parent)
    _say_known(tried)
    print_verdict(tried.verdict)
    assert tried.winner is not None
    click.echo(f"{name} ends with {tried.winner.choice}: {tried.winner.reason}")
    note(f"next     hotswap integrate {desk.folder}")
