"""`hotswap task`: look at one task, and put a candidate of your own before the judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..extractor.task import Task
from ..models.errors import SpecError
from .console import print_json, results
from .options import examples, json_option
from .places import find_task
from .show import history, print_attempts, print_log, print_task

if TYPE_CHECKING:
    from ..optimizer.verdict import Verdict

EXAMPLES = examples(
    "hotswap task show last:gelu",
    "hotswap task try last:gelu mine.py",
    "hotswap task try runs/minilm/tasks/00-gelu mine.py --json",
    "hotswap task log last:gelu",
)


@click.group(epilog=EXAMPLES)
def command() -> None:
    """Look at one task and judge candidates for it. TASK is a task folder or RUN:NAME."""


@command.command("try", epilog=examples("hotswap task try last:gelu mine.py", "hotswap task try TASK mine.py --json"))
@click.argument("task", metavar="TASK")
@click.argument("candidate", metavar="CANDIDATE.py", type=click.Path(path_type=Path))
@click.option("--block", "block_s", type=click.FloatRange(min=0.001), default=0.2, help="Seconds of a timed block.")
@json_option
def try_command(task: str, candidate: Path, block_s: float, as_json: bool) -> None:
    """Judge CANDIDATE.py, a file with `def kernel(...)` of the reference's signature.

    It runs in a process of its own, and is right, honest and timed against eager and Inductor, or it is rejected with
    the reason. Exits with 0 where it is accepted and with 1 where it is not.
    """
    folder = find_task(task)
    try:
        source = candidate.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{candidate}: cannot be read as text ({error}); expected a Python file") from error
    from ..optimizer.judge import Judge

    with Judge(folder, block_s=block_s) as judge:
        verdict = judge.verdict(source)
    if as_json:
        print_json(verdict.to_dict())
    else:
        print_verdict(verdict)
    click.get_current_context().exit(0 if verdict.accepted else 1)


@command.command("show")
@click.argument("task", metavar="TASK")
@json_option
def show_command(task: str, as_json: bool) -> None:
    """Explain TASK: what it computes, where, its shapes and floor; and print its reference."""
    folder = find_task(task)
    record = Task.load(folder / "task.json")
    reference = (folder / "reference.py").read_text(encoding="utf-8")
    if as_json:
        print_json({"task": record.to_dict(), "reference": reference})
        return
    print_task(record, folder)
    click.echo(reference, nl=False)


@command.command("log")
@click.argument("task", metavar="TASK")
@json_option
def log_command(task: str, as_json: bool) -> None:
    """List every attempt on TASK, newest first; a kept one with its difference from its parent."""
    folder = find_task(task)
    record = Task.load(folder / "task.json")
    with history(folder) as ledger:
        attempts = ledger.attempts(record.fingerprint) if ledger else ()
        if as_json:
            print_json({"attempts": [a.to_dict() for a in attempts]})
        elif attempts:
            print_log(ledger, attempts)
        else:
            print_attempts(attempts)


def print_verdict(verdict: Verdict) -> None:
    """Print the decision, what each stage saw, and the race where there was one."""
    from rich.table import Table

    out = results()
    if verdict.accepted:
        out.print("[bold green]accepted[/]")
    else:
        out.print(f"[bold red]rejected[/] at {verdict.stage}:", end=" ")
        out.print(verdict.reason or "", markup=False, soft_wrap=True)
    stages = Table("stage", "passed", "seconds", box=None, pad_edge=False)
    for stage in verdict.stages:
        stages.add_row(stage.stage, "yes" if stage.passed else "no", f"{stage.seconds:.2f}")
    out.print(stages)
    for race in verdict.races:
        times = ", ".join(f"{arm.name} {arm.median_us:.1f} us" for arm in race.arms)
        gains = ", ".join(f"{i.median:.2f}x {name} ({i.low:.2f} to {i.high:.2f})" for name, i in race.speedup.items())
        out.print(f"{race.case}: {times}; {gains}", markup=False, soft_wrap=True)
    if verdict.speedup is not None:
        now = verdict.speedup
        out.print(f"against the best rival: {now.median:.2f}x ({now.low:.2f} to {now.high:.2f}, 99%)", soft_wrap=True)
    out.print(f"isolation: {verdict.isolation}", markup=False, soft_wrap=True)
