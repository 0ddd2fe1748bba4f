"""`hotswap ls`: list runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..integrator.results import Report
from ..models.errors import RecordError
from .console import note, print_json, results
from .options import examples, json_option
from .places import RUNS, runs, tasks


@click.command(epilog=examples("hotswap ls", "hotswap ls experiments/", "hotswap ls --json"))
@click.argument("folder", type=click.Path(path_type=Path), default=RUNS)
@json_option
def command(folder: Path, as_json: bool) -> None:
    """List the runs in FOLDER (./runs unless given), newest first: what each came to, and whether it was finished."""
    found = [describe(run) for run in runs(folder)]
    if as_json:
        print_json(found)
        return
    if not found:
        note(f"no runs in {folder}; `hotswap run MODEL` makes one")
        return
    from rich.table import Table

    table = Table("run", "model", "state", "tasks", "kept", "vs eager", "vs compile", box=None, pad_edge=False)
    for row in found:
        cells = (row["run"], row["model"], row["state"], row["tasks"], row["kept"], row["eager"], row["compile"])
        table.add_row(*("-" if c is None else f"{c:.2f}x" if isinstance(c, float) else str(c) for c in cells))
    results().print(table)


def describe(run: Path) -> dict[str, Any]:
    """Return a run as one row: state is "done", "partial" (stopped, its report is valid), "stopped" or "unreadable"."""
    row: dict[str, Any] = {"run": run.name, "path": str(run), "tasks": len(tasks(run))}
    row |= dict.fromkeys(("model", "kept", "eager", "compile", "problem"))
    if not (run / "report.json").exists():
        return row | {"state": "stopped"}
    try:
        report = Report.load(run / "report.json")
    except RecordError as error:
        return row | {"state": "unreadable", "problem": str(error)}
    return row | {
        "model": report.model,
        "state": "done" if report.complete else "partial",
        "kept": sum(r.outcome == "kernel" for r in report.rows),
        "eager": speedup(report, "eager"),
        "compile": speedup(report, "compile"),
    }


def speedup(report: Report, rival: str) -> float | None:
    """Return our least speed-up over a rival among the run's example calls: no call is hidden behind another.

    None where nothing of ours ran: what is recorded then is torch.compile over eager.
    """
    ours = [e for e in report.end_to_end if any(arm.name == "hotswap" for arm in e.arms)]
    found = [e.speedup[rival].median for e in ours if rival in e.speedup]
    return min(found, default=None)
