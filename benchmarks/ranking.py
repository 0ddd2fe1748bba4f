"""Hold the ranking of tasks to what it promises: equal orders run after run, and Amdahl's gain in the whole model.

usage: python benchmarks/ranking.py [MODEL] [--runs N] [--tasks N] [--seconds S] [--out FILE]

A task's speed-up of known size is a stand-in: it answers from a memo after waiting a known part of the region's
measured time. What Amdahl's law then makes of the task's share is set against the step as it is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from hotswap.benchmarks.sweep_kit.stand_in import stand_in
from hotswap.extractor.capture import capture
from hotswap.extractor.extract import extract
from hotswap.extractor.ranking import kendall_tau
from hotswap.extractor.task import Extraction, Task, task_folder
from hotswap.integrator.blocks import Timed, warm
from hotswap.integrator.measure import many_rounds, measure, model_arm, pace_for
from hotswap.integrator.patch import Patch
from hotswap.integrator.rewrites.plan import SWITCHES
from hotswap.models.environment import environment
from hotswap.models.spec import LoadOptions, load
from hotswap.models.workload import Workload
from hotswap.profiler.limits import measure as measured_limits
from hotswap.profiler.record import record
from hotswap.profiler.recording import Limits

RESULTS = Path(__file__).parent / "results"
# The step of a small encoder: long enough that what a swap itself costs, tens of microseconds a place, does not count.
MODEL, BATCH, LENGTH = "bert-base@slice", 8, 128
# How many times faster the stand-ins are. The last one takes no time at all.
SPEEDUPS = (1.5, 3.0, float("inf"))
WITHIN = 0.10

_WAITING = '''

import time as _time

_WAITS_US = {waits!r}
_MEMO = {{}}


def kernel({names}):
    """Answer from a memo, when the time is up."""
    shapes = tuple(tuple(t.shape) for t in ({names},))
    end = _time.perf_counter() + _WAITS_US[shapes] * 1e-6
    if shapes not in _MEMO:
        _MEMO[shapes] = tuple(output.clone() for output in reference({names}))
    while _time.perf_counter() < end:
        pass
    return _MEMO[shapes]
'''


@dataclass(frozen=True)
class Predicted:
    """A task at an artificial speed-up. predicted, measured: of the whole step, over eager."""

    task: str
    share: float
    speedup: float
    predicted: float
    measured: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "speedup": str(self.speedup), "error": round(self.error, 4)}


def amdahl(share: float, speedup: float) -> float:
    """Return the whole step's speed-up where `share` of it is `speedup` times faster."""
    return 1.0 / (1.0 - share * (1.0 - 1.0 / speedup))


def waiting(task: Task, folder: Path, speedup: float) -> str:
    """Return the source of a stand-in for `task` that takes its measured time over `speedup`, at each shape."""
    source = stand_in(task, folder).source
    assert source is not None
    waits = {tuple(spec.shape for spec in case.inputs): case.eager_us / speedup for case in task.cases}
    return source.partition("\n\ndef kernel(")[0] + _WAITING.format(waits=waits, names=", ".join(task.inputs))


def rankings(workload: Workload, limits: Limits, runs: int, folder: Path, top: int) -> list[Extraction]:
    """Return `runs` extractions of one model, each profiled and captured anew; the tasks of run i are in `folder`/i."""
    found = []
    for run in range(runs):
        torch._dynamo.reset()
        profile = record(workload, limits=limits)
        found.append(extract("model", capture(workload), profile, folder / str(run) / "tasks", top=top))
    return found


def try_speedups(workload: Workload, run: Path, tasks: Sequence[Task], seconds: float) -> list[Predicted]:
    """Return what was predicted and measured for each of `tasks`, the first of a ranking, at each artificial speed-up.

    seconds: about how long each is timed against eager.
    """
    rows = []
    for rank, task in enumerate(tasks):
        folder = task_folder(run / "tasks", rank, task)
        for speedup in SPEEDUPS:
            torch._dynamo.reset()
            winner = replace(stand_in(task, folder), source=waiting(task, folder, speedup))
            with tempfile.TemporaryDirectory() as scratch:
                winner.save(Path(scratch) / "winners" / "000.json")
                rows.append(_timed(workload, Path(scratch), task, speedup, seconds))
            print(_line(rows[-1]), file=sys.stderr)
    return rows


def _timed(workload: Workload, run: Path, task: Task, speedup: float, seconds: float) -> Predicted:
    (call,) = workload.calls
    patch = Patch(workload.model, run, "eager")
    for switch in SWITCHES:
        patch.enable(switch, False)
    arms = {"eager": Timed(model_arm(workload.model, call)), "hotswap": Timed(model_arm(patch, call))}
    usual = pace_for(workload.model)
    with torch.no_grad():
        step_s = max(warm(arm, usual) for arm in arms.values())
    ratio = measure(arms, call=call, pace=many_rounds(usual, step_s, len(arms), seconds)).speedup["eager"]
    patch.require_engaged()
    return Predicted(task.name, task.share, speedup, amdahl(task.share, speedup), ratio.median, ratio.low, ratio.high)


def _line(row: Predicted) -> str:
    return (
        f"{row.task}, {100 * row.share:.1f}% of the step, {row.speedup:g}x faster: predicted {row.predicted:.3f}x, "
        f"measured {row.measured:.3f}x [{row.low:.3f}, {row.high:.3f}], {100 * row.error:+.1f}%"
    )


def main() -> int:
    asked = _options()
    workload = load(asked.model, LoadOptions(batch=BATCH, seq_len=(LENGTH,)))
    limits = measured_limits(str(next(workload.model.parameters()).device))
    with tempfile.TemporaryDirectory() as folder:
        found = rankings(workload, limits, asked.runs, Path(folder), asked.top)
        taus = [kendall_tau(one, other) for one, other in combinations(found, 2)]
        print(f"Kendall's tau of {len(found)} rankings, pair by pair: {taus}", file=sys.stderr)
        rows = try_speedups(workload, Path(folder) / "0", found[0].tasks[: asked.tasks], asked.seconds)
    far = [row for row in rows if abs(row.error) > WITHIN]
    made = {
        "suite": "ranking",
        "measured_at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "environment": environment(),
        "model": f"{asked.model}, batch {BATCH}, length {LENGTH}",
        "ranking": [task.name for task in found[0].tasks],
        "kendall_tau": taus,
        "speedups": [row.to_dict() for row in rows],
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows) - len(far)} of {len(rows)} predictions within {100 * WITHIN:.0f}%; {asked.out}")
    return 1 if far else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=MODEL)
    parser.add_argument("--runs", type=int, default=3, help="rankings to compare")
    parser.add_argument("--top", type=int, default=16, help="tasks a ranking holds")
    parser.add_argument("--tasks", type=int, default=3, help="the first tasks, to be sped up")
    parser.add_argument("--seconds", type=float, default=20.0, help="timing of each artificial speed-up")
    parser.add_argument("--out", type=Path, default=RESULTS / "ranking.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
