"""`hotswap show`: explain one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..extractor.task import Task
from ..models.errors import SpecError
from .console import print_json, results
from .options import examples, json_option
from .places import find_task, plain_names, run_of
from .task_log import outcome, print_log

if TYPE_CHECKING:
    from ..optimizer.attempt import Attempt
    from ..optimizer.ledger import Ledger
    from ..optimizer.winner import Winner

EXAMPLES = examples(
    "hotswap show runs/20261130-101500-minilm/tasks/00-gelu",
    "hotswap show last:gelu",
    "hotswap show last:gelu --log",
    "hotswap show last:gelu --source 3f2a9c01 > kernel.py",
)


@click.command(epilog=EXAMPLES)
@click.argument("task", metavar="TASK")
@click.option("--log", is_flag=True, help="Every attempt, newest first, kept or reverted, with what it changed.")
@click.option("--source", metavar="HASH", help="Print the candidate of this hash, or of its beginning; nothing else.")
@json_option
def command(task: str, log: bool, source: str | None, as_json: bool) -> None:
    """Explain TASK, a task folder or RUN:NAME: what it computes, its shapes, its floor, and what was tried on it.

    RUN is a run directory, a name under runs/, or `last`.
    """
    folder = find_task(task)
    record = Task.load(folder / "task.json")
    with history(folder) as ledger:
        attempts = ledger.attempts(record.fingerprint) if ledger else ()
        if source is not None:
            click.echo(_source(ledger, attempts, source, task), nl=False)
        elif log:
            print_log(ledger, attempts, as_json=as_json)
        elif as_json:
            winner = ended(folder, record)
            body = {"task": record.to_dict(), "winner": winner.to_dict() if winner else None}
            print_json(body | {"attempts": [a.to_dict() for a in attempts]})
        else:
            print_task(record, folder)
            print_attempts(attempts)
            winner = ended(folder, record)
            if winner is not None:
                results().print(f"  ends with {winner.choice}: {winner.reason}", markup=False, soft_wrap=True)


def ended(folder: Path, task: Task) -> Winner | None:
    """Return how the search on the task ended, None where it has not."""
    from ..optimizer.winner import Winner

    run = run_of(folder)
    path = run / "winners" / f"{task.name}.json" if run else folder / "winner.json"
    return Winner.load(path) if path.exists() else None


@contextmanager
def history(task: Path) -> Iterator[Ledger | None]:
    """Yield the ledger a task's attempts are in, its run's or its own, for reading; None where nothing was tried."""
    path = (run_of(task) or task) / "ledger.db"
    if not path.exists():
        yield None
        return
    from ..optimizer.ledger import Ledger

    with Ledger.read(path) as ledger:
        yield ledger


def print_task(task: Task, folder: Path) -> None:
    """Print what a task is: ops, places, shapes, and what there is to gain."""
    from rich.table import Table

    out = results()
    out.print(f"[bold]{task.name}[/]  {task.kind}, on {task.device}; fingerprint {task.fingerprint}")
    out.print(f"  computes  {' '.join(task.ops)}", markup=False)
    for site in task.sites[:4]:
        whole = ", the whole module" if site.whole_module else ""
        out.print(f"  in        {site.module or '(root)'} ({site.module_class}{whole})", markup=False)
    if len(task.sites) > 4:
        out.print(f"            and {len(task.sites) - 4} more places")
    for symbol in task.kernels[:4]:
        out.print(f"  launches  {plain_names(symbol)[0]}", markup=False)
    out.print(
        f"  takes     {task.eager_us:.0f} us a step, {100 * task.share:.1f}% of it; its floor is {task.floor_us:.0f} us"
    )
    out.print(f"  could     make the whole model {task.ceiling:.3f}x faster at its floor")
    for remark in task.notes:
        out.print(f"  note      {remark}", markup=False)
    table = Table("shape", "weight", "eager us", "input", "dtype", "size", "stride", "role", box=None, pad_edge=False)
    for case in task.cases:
        for position, spec in enumerate(case.inputs):
            head = (case.name, f"{case.weight:g}", f"{case.eager_us:.1f}") if position == 0 else ("", "", "")
            size, stride = ("x".join(map(str, v)) or "scalar" for v in (spec.shape, spec.stride))
            table.add_row(*head, spec.name, spec.dtype.removeprefix("torch."), size, stride, spec.role)
    out.print(table)
    out.print(
        f"  files     {folder}/reference.py runs alone; {folder}/kernel.py is the best so far",
        markup=False,
        soft_wrap=True,
    )


def print_attempts(attempts: Sequence[Attempt]) -> None:
    """Print what was tried, one attempt a line, in the order it was."""
    from rich.table import Table

    if not attempts:
        results().print("  nothing was tried yet; `hotswap optimize TASK` does")
        return
    table = Table("#", "hash", "by", "knobs", "us", "speed-up", "outcome", box=None, pad_edge=False)
    for attempt in attempts:
        won = attempt.verdict.speedup if attempt.verdict else None
        table.add_row(
            str(attempt.number),
            attempt.source_hash[:8],
            attempt.proposer,
            " ".join(f"{k}={v}" for k, v in attempt.knobs.items()),
            f"{attempt.median_us:.1f}" if attempt.median_us else "-",
            f"{won.median:.2f}x ({won.low:.2f}-{won.high:.2f})" if won else "-",
            outcome(attempt),
        )
    results().print(table)


def _source(ledger: Ledger | None, attempts: Sequence[Attempt], beginning: str, task: str) -> str:
    found = sorted({a.source_hash for a in attempts if a.source_hash.startswith(beginning)})
    if ledger is None or len(found) != 1:
        what = f"{len(found)} candidates begin with it" if found else "no candidate begins with it"
        raise SpecError(f"{task}: hash {beginning!r}: {what}; `hotswap show {task}` lists them")
    return ledger.source(found[0])
