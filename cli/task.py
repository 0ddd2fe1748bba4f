"""`hotswap task`: look at one task, and put a candidate of your own before the judge."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..extractor.task import Task
from ..models.errors import InputError, SpecError
from .console import note, print_json, results
from .options import examples, json_option, resolved, settings_options
from .places import find_task
from .show import history, print_task
from .task_log import print_log

if TYPE_CHECKING:
    from ..optimizer.verdict import Verdict

EXAMPLES = examples(
    "hotswap task new rmsnorm.py --device cuda --dtype bf16",
    "hotswap task show last:gelu",
    "hotswap task try last:gelu mine.py",
    "hotswap task try runs/minilm/tasks/00-gelu mine.py --json",
    "hotswap task log last:gelu",
)


@click.group(epilog=EXAMPLES)
def command() -> None:
    """Make a task, look at one, and judge candidates for it. TASK is a task folder or RUN:NAME."""


@command.command(
    "new", epilog=examples("hotswap task new rmsnorm.py", "hotswap task new level1/23_Softmax.py --out softmax")
)
@click.argument("file", metavar="FILE.py", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Task folder to write; <FILE>-task unless given.")
@settings_options("device", "dtype", "seed")
@json_option
def new_command(file: Path, out: Path | None, as_json: bool, **flags: Any) -> None:
    """Make a task from FILE.py, and try whether it can tell a right answer from a trivial one.

    FILE.py defines `reference(*tensors, **consts)` and `inputs(seed, shape_index=0)`, a tuple of tensors whose
    nn.Parameters are weights; it may define `SHAPES`, a dict of names with weights, and `CONSTS`, a dict of numbers.
    Or it is a KernelBench problem: `Model` (taken in eval mode), `get_inputs` and `get_init_inputs`.
    --dtype auto leaves the dtypes as they are.
    """
    from ..extractor.load_task import load_task
    from ..extractor.new_task import new_task
    from ..models.spec import resolve_device, resolve_dtype
    from ..optimizer.judge.bank import Bank

    settings = resolved(flags)
    device = resolve_device(settings.device)
    dtype = None if settings.dtype == "auto" else resolve_dtype(settings.dtype, device)
    folder = out or Path(f"{file.stem}-task")
    record = new_task(file, folder, device=device, dtype=dtype, seed=settings.seed)
    try:
        bank = Bank(load_task(folder), settings.seed)
    except InputError:
        shutil.rmtree(folder)
        raise
    if as_json:
        print_json({"folder": str(folder), "task": record.to_dict(), "notes": bank.notes})
        return
    print_task(record, folder)
    for remark in bank.notes:
        note(remark)
    note(f"next     hotswap task try {folder} candidate.py")


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
    """Tell the history of TASK as git would: every attempt, newest first, kept or reverted, with what it changed.

    Each difference is a patch of kernel.py, from the source that the attempt was made from, or else from the kernel
    that was the best then. Times of day are left out, so that two logs can be compared; --json has them.
    """
    folder = find_task(task)
    record = Task.load(folder / "task.json")
    with history(folder) as ledger:
        print_log(ledger, ledger.attempts(record.fingerprint) if ledger else (), as_json=as_json)


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
