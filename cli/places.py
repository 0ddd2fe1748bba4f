"""Find runs and tasks on disk by what a user types."""

from __future__ import annotations

import re
from pathlib import Path

from ..models.errors import RecordError, SpecError
from ..models.suggest import did_you_mean

RUNS = Path("runs")


def is_run(folder: Path) -> bool:
    """Whether a folder holds what a run writes."""
    return folder.is_dir() and any(
        (folder / name).exists() for name in ("run.json", "profile.json", "tasks", "report.json")
    )


def runs(root: Path) -> list[Path]:
    """Return the runs below a folder, newest first by name, which begins with the time."""
    return sorted((p for p in root.iterdir() if is_run(p)), reverse=True) if root.is_dir() else []


def find_run(text: str) -> Path:
    """Return the run directory that `text` names: a path, a name under `runs/`, or "last"."""
    if text == "last":
        known = runs(RUNS)
        if not known:
            raise RecordError(f"{RUNS.absolute()}: no runs there; `hotswap run MODEL` makes one")
        return known[0]
    for folder in (Path(text), RUNS / text):
        if is_run(folder):
            return folder
    if Path(text).exists():
        raise RecordError(f"{text}: not a run directory (no run.json, profile.json or tasks/ in it)")
    raise RecordError(f"{text}: no run directory there{_nearest(text, [p.name for p in runs(RUNS)])}")


def tasks(run: Path) -> list[Path]:
    """Return the task folders of a run, best first: their names begin with the rank."""
    return sorted(p.parent for p in (run / "tasks").glob("*/task.json"))


def find_task(text: str) -> Path:
    """Return the task folder that `text` names: a path, or `RUN:NAME` with or without the rank before the name.

    A module's path, an op, a GPU kernel's symbol or a fingerprint names the best task that has it.
    """
    folder = Path(text)
    if (folder / "task.json").is_file():
        return folder
    # A colon alone: `aten::linear` is one word.
    parts = re.fullmatch(r"(.*)(?<!:):(?!:)(.*)", text)
    if parts is None:
        raise SpecError(f"{text}: not a task folder (no task.json in it), nor RUN:NAME")
    run, name = find_run(parts[1]), parts[2]
    found = [t for t in tasks(run) if name in (t.name, t.name.partition("-")[2], t.name.partition("-")[0])]
    found = found or [t for t in tasks(run) if name in _other_names(t)]
    if not found:
        raise SpecError(
            f"{text}: no such task in {run}{_nearest(name, [t.name.partition('-')[2] for t in tasks(run)])}"
        )
    return found[0]


def _other_names(task: Path) -> set[str]:
    """Return what else a task is known by: fingerprint, paths of its modules, its ops plain and as ATen's, kernels."""
    from ..extractor.task import Task

    record = Task.load(task / "task.json")
    ops = {spelled for op in record.ops for spelled in (op, f"aten::{op}")}
    kernels = {spelled for symbol in record.kernels for spelled in (symbol, *plain_names(symbol))}
    return {record.fingerprint, *ops, *kernels, *(site.module for site in record.sites if site.module)}


def plain_names(symbol: str) -> tuple[str, str]:
    """Return a kernel's symbol without its template and arguments, and that without its namespaces."""
    named = symbol.replace("(anonymous namespace)::", "")
    qualified = re.split(r"[<(]", named, maxsplit=1)[0].removeprefix("void ").strip()
    return qualified, qualified.rpartition("::")[2]


def run_of(task: Path) -> Path | None:
    """Return the run a task folder belongs to, None where it stands alone."""
    run = task.absolute().parent.parent
    return run if is_run(run) and task.absolute().parent.name == "tasks" else None


def _nearest(word: str, known: list[str]) -> str:
    return did_you_mean(word, known) if known else "; there are none"
