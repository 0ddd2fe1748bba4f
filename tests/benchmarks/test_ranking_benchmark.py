"""The benchmark of rankings: Amdahl's arithmetic, and stand-ins of known speed that answer as the region does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hotswap.benchmarks.ranking import amdahl, rankings, waiting
from hotswap.extractor.ranking import kendall_tau
from hotswap.extractor.task import task_folder
from hotswap.models.workload import Call, Workload
from hotswap.profiler.recording import Limits

LIMITS = Limits("cpu", 10.0, {"float32": 0.05}, 1.0, 1 << 20, "")


def test_half_a_step_that_takes_no_time_any_more_doubles_the_speed() -> None:
    assert amdahl(0.5, float("inf")) == 2.0
    assert amdahl(0.5, 2.0) == pytest.approx(4 / 3)


def test_a_stand_in_of_known_speed_answers_as_its_region_and_then_from_a_memo(tmp_path: Path) -> None:
    workload = Workload(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)), (Call(args=(torch.randn(512, 64),)),))
    one, other = rankings(workload, LIMITS, 2, tmp_path, 4)
    assert kendall_tau(one, other) is not None
    task = next(t for t in one.tasks if t.kind == "memory")
    source = waiting(task, task_folder(tmp_path / "0" / "tasks", one.tasks.index(task), task), speedup=4.0)
    made: dict[str, Any] = {"__name__": "stand_in"}
    exec(compile(source, "stand_in.py", "exec"), made)
    assert list(made["_WAITS_US"].values()) == [pytest.approx(task.cases[0].eager_us / 4)]
    inputs = [torch.randn(spec.shape) for spec in task.cases[0].inputs]
    first = made["kernel"](*inputs)
    torch.testing.assert_close(first, tuple(made["reference"](*inputs)))
    assert made["kernel"](*inputs) is first
