"""`hotswap run MODEL`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .console import note, print_json, progress
from .options import (
    MODEL_SETTINGS,
    SEARCH_SETTINGS,
    WHOLE_SETTINGS,
    examples,
    json_option,
    model_options,
    settings_options,
)
from .request import Request, command_line, resumable

EXAMPLES = examples(
    "hotswap run ./all-MiniLM-L6-v2 --batch 8 --seq-len 128",
    "hotswap run Qwen/Qwen3-0.6B --seq-len 512 --seq-len 1 --budget 30m --top 12",
    "hotswap run train.py:make_model --inputs train.py:batch --mode inductor --out runs/mine",
    "hotswap run llama-3.2-1b@tiny --budget 60s --json",
)


@click.command(epilog=EXAMPLES)
@click.argument("model")
@settings_options(*MODEL_SETTINGS, *SEARCH_SETTINGS, *WHOLE_SETTINGS, "out")
@model_options
@json_option
def command(model: str, as_json: bool, **flags: Any) -> None:
    """Make MODEL faster: profile it, cut out hot regions, search for kernels, put the winners in, measure the whole.

    Everything is kept in a run directory: the report (report.html), every attempt, and patched/, a package that puts
    the winners into the model with torch alone. "Leave it alone" is an answer too, and exits with 0.
    """
    from ..integrator.optimize import continue_run

    request = Request.from_flags(model, flags)
    workload = request.workload()
    with resumable(request.new_directory()) as directory, progress() as bars:
        continue_run(directory, workload, request.settings, progress=bars, command=command_line())
    print_run(directory.folder, as_json=as_json)


def print_run(folder: Path, *, as_json: bool) -> None:
    """Print the report of a run, and where its files are."""
    from ..integrator.results import Report
    from .report import show

    report = Report.load(folder / "report.json")
    if as_json:
        print_json({"run": str(folder), "report": report.to_dict()})
        return
    show(report, folder)
    note(f"report   {folder / 'report.html'}")
    if report.patched:
        note(f"package  {report.patched}")
    note(f"again    hotswap report {folder}    hotswap verify {folder}    hotswap ls")
