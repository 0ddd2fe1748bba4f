"""`hotswap task`: look at one task, and put a candidate of your own before the judge."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click

from ..extractor.task import Task
from ..models.errors import InputError
from .console import note, print_json
from .options import examples, json_option, resolved, settings_options
from .places import find_task
from .show import history, print_task
from .task_log import print_log
from .task_submit import judged, offering, read_candidate, submit_command
from .verdict import print_verdict

EXAMPLES = examples(
    "hotswap task new rmsnorm.py --device cuda --dtype bf16",
    "hotswap task show last:gelu",
    "hotswap task try last:gelu mine.py",
    "hotswap task try runs/minilm/tasks/00-gelu mine.py --json",
    "hotswap task submit last:gelu mine.py",
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
@offering
@json_option
def try_command(task: str, candidate: Path, who: str, parent: str | None, block_s: float, as_json: bool) -> None:
    """Judge CANDIDATE.py, a file with `def kernel(...)` of the reference's signature.

    It runs in a process of its own, and is right, honest and timed against eager and Inductor, or it is rejected with
    the reason. Exits with 0 where it is accepted and with 1 where it is not. The verdict goes on record (`hotswap task
    log TASK`), and a file that was judged before is not judged again.
    """
    source = read_candidate(candidate)
    verdict = judged(task, source, who, parent, block_s)
    if as_json:
        print_json(verdict.to_dict())
    else:
        print_verdict(verdict)
    click.get_current_context().exit(0 if verdict.accepted else 1)


command.add_command(submit_command)


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


@command.command("export", epilog=examples("hotswap task export last:gelu --out gelu", "hotswap task export TASK"))
@click.argument("task", metavar="TASK")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to write; <TASK>-kernelbench unless given.")
@click.option("--kernel", type=click.Path(path_type=Path), help="Kernel to export; the task's best unless given.")
def export_command(task: str, out: Path | None, kernel: Path | None) -> None:
    """Write TASK as a KernelBench problem, problem.py, and its best kernel as ModelNew, solution.py.

    Each is one file that needs only torch (and what the kernel is written in). The first recorded shape is written.
    """
    from ..extractor.load_task import load_task
    from ..integrator.export_kernelbench import export_kernelbench

    folder = find_task(task)
    best = kernel or folder / "kernel.py"
    source = read_candidate(best) if kernel or best.exists() else None
    for path in export_kernelbench(load_task(folder), out or Path(f"{folder.name}-kernelbench"), source):
        click.echo(path)
    if source is None:
        note(f"{folder}: no kernel was found yet, so there is no solution.py")


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
