"""What a profile says about itself, and the module times that stand in where a device gives no events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hotswap.models.workload import Call
from hotswap.profiler import notes
from hotswap.profiler import record as recorder
from hotswap.profiler.attribution import Attribution
from hotswap.profiler.chrome_trace import Trace, parse_trace
from hotswap.profiler.module_times import module_rows
from hotswap.profiler.recording import CallProfile, Limits, Row
from hotswap.profiler.step import Step

ROW = Row("aten::mm", "m", "Linear", ((8, 8),), ("float32",), ((8, 1),), 1, 100.0, 50.0, 1, 1, "compute")
CALL = CallProfile("call", 1.0, (ROW,), 1000.0, (1000.0,), 1000.0, 900.0, 0.1, 40, 1)


def test_a_launch_bound_step_is_told_what_kernels_can_win_and_what_helps(limits: Limits) -> None:
    said = notes.launch_bound(CALL, "cuda", limits)
    assert said is not None
    for words in ("busy 10%", "40 launches", "at most 1.11x", "CUDA graphs"):
        assert words in said
    assert notes.launch_bound(replace(CALL, busy_share=0.9), "cuda", limits) is None


def test_a_cpu_step_that_is_mostly_python_is_told_so(limits: Limits) -> None:
    said = notes.launch_bound(CALL, "cpu", limits)
    assert said is not None
    assert "90% of the step is Python" in said
    # The recording's own cost is no Python of the model's.
    assert notes.launch_bound(replace(CALL, step_us=150.0), "cpu", limits) is None


def test_a_step_that_recording_slowed_is_told_apart_from_one_that_is_slow() -> None:
    said = notes.slowed_by_recording(replace(CALL, step_us=250.0), "cpu")
    assert said is not None
    assert "4.0x the plain one" in said
    assert notes.slowed_by_recording(CALL, "cpu") is None
    assert notes.slowed_by_recording(replace(CALL, step_us=250.0), "cuda") is None


def test_no_device_events_of_a_gpu_model_is_a_degraded_profile() -> None:
    host = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 5}]
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 2, "dur": 5}
    said = notes.no_device_events(parse_trace(host), "cuda")
    assert said is not None
    assert said.startswith("degraded")
    assert "CUPTI" in said
    assert notes.no_device_events(parse_trace([*host, kernel]), "cuda") is None
    assert notes.no_device_events(parse_trace(host), "cpu") is None


def test_rows_faster_than_their_floor_put_the_limits_in_doubt() -> None:
    assert notes.limits_too_low([CALL]) is None
    said = notes.limits_too_low([replace(CALL, rows=(ROW, replace(ROW, self_us=25.0)))])
    assert said is not None
    assert said.startswith("1 of 2 rows")


def test_streams_that_overlap_are_said() -> None:
    assert notes.overlapping("call", Attribution((ROW,), 1, 100.0, 0.0)) is None
    said = notes.overlapping("call", Attribution((ROW, ROW), 2, 100.0, 0.0))
    assert said is not None
    assert "2.00x" in said


def test_shares_are_of_the_plain_step_where_the_profiler_slows_only_the_host() -> None:
    on_device = replace(CALL, whole_us=400.0, other_us=300.0)
    assert (on_device.share(100.0), on_device.coverage) == (0.25, 0.25)
    assert CALL.coverage == pytest.approx(0.1)


def test_module_times_are_each_modules_own_on_the_clock_given() -> None:
    now = iter(range(0, 1000, 10))

    class Tick:
        def __init__(self) -> None:
            self.at = next(now)

        def us_until(self, later: Any) -> float:
            return float(later.at - self.at)

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    rows = module_rows(Step(model, Call((torch.ones(1, 4),))), Tick)
    # 0 [ 10 (0) 20, 30 (1) 40 ] 50: the whole is 50, of which the children had 20.
    assert [(r.module, r.module_class, r.self_us, r.calls) for r in rows] == [
        ("", "Sequential", 30.0, 1),
        ("0", "Linear", 10.0, 1),
        ("1", "ReLU", 10.0, 1),
    ]


def test_without_device_events_the_rows_are_modules_and_the_profile_says_so(
    monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    def without_device(trace: Trace, device_type: str) -> str | None:
        return degraded(trace, "cuda")

    degraded = notes.no_device_events
    monkeypatch.setattr(notes, "no_device_events", without_device)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    call, said = recorder._record_call(Step(model, Call((torch.ones(1, 4),))), limits, 1, None)
    assert {r.module for r in call.rows} == {"", "0", "1"}
    assert any(line.startswith("degraded") for line in said)
    assert sum(r.self_us for r in call.rows) + call.other_us >= call.recorded_us or call.other_us == 0.0


def test_a_counting_pass_that_fails_costs_the_floors_and_not_the_profile(
    monkeypatch: pytest.MonkeyPatch, limits: Limits, tmp_path: Path
) -> None:
    def fails(*_: Any) -> Any:
        raise NotImplementedError("an op of mine\nhas no fake")

    monkeypatch.setattr(recorder, "count_costs", fails)
    model = nn.Linear(4, 4)
    call, said = recorder._record_call(Step(model, Call((torch.ones(1, 4),))), limits, 1, None)
    assert said[0].startswith("degraded: bytes and FLOPs are unknown")
    assert "NotImplementedError: an op of mine has no fake" in said[0]
    assert all(r.floor_us is None for r in call.rows)


def test_a_heap_that_is_given_back_at_each_step_is_said_with_what_to_set() -> None:
    said = notes.heap_given_back("call", 2848, 4096)
    assert said is not None
    assert "2,848 page faults a step (11 MiB)" in said
    assert "MALLOC_TRIM_THRESHOLD_" in said


def test_a_few_page_faults_are_not_worth_a_line() -> None:
    assert notes.heap_given_back("call", 100, 4096) is None
