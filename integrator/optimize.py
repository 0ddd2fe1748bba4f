"""The whole way: profile, extract, optimize, integrate, each stage from the records of the one before it.

A run directory holds every record, so a run that dies anywhere goes on from the last finished stage, and within the
search from the last finished attempt.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from ..extractor.capture import capture
from ..extractor.extract import extract
from ..extractor.task import Extraction
from ..models.environment import environment
from ..models.progress import Progress, silent
from ..models.record import write_text
from ..models.settings import Settings, resolve, rows
from ..models.workload import Workload, as_calls
from ..profiler.record import record, trace_paths
from ..profiler.recording import Profile
from ..profiler.tensorboard import write_tensorboard
from .agent_guide import write_agent_guide
from .integrate import integrate
from .results import Report
from .run_directory import Run, RunDirectory, Stage
from .search_tasks import search_tasks

T = TypeVar("T")


def optimize(
    model: nn.Module,
    example_inputs: Any,
    *,
    budget: str | float = "10m",
    out: str | os.PathLike[str] | None = None,
    top: int = 8,
    mode: str = "auto",
    baselines: str = "default",
    seed: int = 0,
    progress: Progress = silent,
) -> Run:
    """Search for faster kernels for `model` and return the run; the model itself is left as it was.

    example_inputs: a dict is kwargs, a tuple is args, a tensor is one argument, a list holds `hotswap.Call`s.
    budget: seconds the search may take, as a number or "90s", "10m". out: the run directory, `runs/<time>-<model>` by
    default. `hotswap.patch(model, run)` then puts the winners in.
    """
    flags = {"budget": budget, "top": top, "mode": mode, "baselines": baselines, "seed": seed}
    settings = resolve({**flags, "out": str(out) if out is not None else None})
    return optimize_workload(Workload(model, as_calls(example_inputs)), settings, progress=progress)


def optimize_workload(workload: Workload, settings: Settings, *, progress: Progress = silent, command: str = "") -> Run:
    """Run all stages on `workload` in a new run directory and return the finished run."""
    name = workload.spec or type(workload.model).__name__
    shown = {setting: value for setting, value, _ in rows(settings) if value != "-" and setting != "out"}
    with RunDirectory.create(
        name, out=settings.out, settings=shown, sources=settings.sources, seed=settings.seed
    ) as directory:
        return continue_run(directory, workload, settings, progress=progress, command=command)


def continue_run(
    directory: RunDirectory, workload: Workload, settings: Settings, *, progress: Progress = silent, command: str = ""
) -> Run:
    """Run the stages that `directory` lacks; finished ones are read back, finished attempts not repeated."""
    profile = _stage(directory, "profile", lambda: profile_stage(directory, workload, progress), Profile.load)
    extraction = _stage(
        directory, "extract", lambda: extract_stage(directory, workload, profile, settings, progress), Extraction.load
    )
    if not directory.done("optimize"):
        started = time.monotonic()
        search_tasks(directory, extraction, settings, progress)
        directory.finish("optimize", time.monotonic() - started)
    if not directory.done("integrate"):
        started = time.monotonic()
        integrate(directory, workload, profile, extraction, settings, progress, command=command)
        directory.finish("integrate", time.monotonic() - started)
    return directory.run


def _stage(directory: RunDirectory, stage: Stage, make: Callable[[], T], load: Callable[[Path], T]) -> T:
    """Return a stage's record: made now, or read back where the stage is done."""
    if directory.done(stage):
        return load(directory.profile if stage == "profile" else directory.extraction)
    started = time.monotonic()
    made = make()
    directory.finish(stage, time.monotonic() - started)
    return made


def profile_stage(directory: RunDirectory, workload: Workload, progress: Progress = silent) -> Profile:
    """Record where the workload spends its time; write profile.json, the trace, and a TensorBoard directory."""
    progress("profile", 0, 1, "recording under torch.profiler")
    profile = record(workload, trace=directory.trace)
    profile.save(directory.profile)
    write_text(directory.environment, json.dumps(environment(), indent=1) + "\n")
    said = write_tensorboard(profile, trace_paths(directory.trace, workload.calls), directory.tensorboard)
    progress("profile", 1, 1, said or "")
    return profile


def extract_stage(
    directory: RunDirectory, workload: Workload, profile: Profile, settings: Settings, progress: Progress = silent
) -> Extraction:
    """Cut the workload's hot regions out as task folders; write extraction.json."""
    progress("extract", 0, 2, "capturing graphs")
    found = capture(workload)
    progress("extract", 1, 2, f"timing the nodes of {len(found.graphs)} graph(s)")
    extraction = extract(profile.model, found, profile, directory.tasks, top=settings.top)
    extraction.save(directory.extraction)
    write_agent_guide(directory.folder, directory.run.model, extraction.tasks)
    progress("extract", 2, 2, f"{len(extraction.tasks)} task(s)")
    return extraction


def load_report(folder: Path) -> Report:
    """Return the report of a run; raise RecordError where the run has none yet."""
    return Report.load(folder / "report.json")
