"""The same promises on a real GPU."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hotswap.models.workload import Call, Workload
from hotswap.profiler import record as recorder
from hotswap.profiler.limits import measure
from hotswap.profiler.record import record

pytestmark = pytest.mark.gpu


def model(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).cuda().bfloat16()


def workload(rows: int, width: int) -> Workload:
    return Workload(model(width), (Call((torch.randn(rows, width, device="cuda", dtype=torch.bfloat16),)),))


def test_device_time_is_counted_once_at_the_module_that_launched_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile = record(workload(8192, 2048))
    call = profile.calls[0]
    assert sum(r.self_us for r in call.rows) + call.other_us == pytest.approx(call.whole_us)
    assert {("aten::addmm", "0"), ("aten::gelu", "1"), ("aten::addmm", "2")} <= {(r.op, r.module) for r in call.rows}
    assert call.launches >= 3
    assert call.busy_share > 0.5
    # The profile's figures and the limits describe one machine: matmuls of this size run near the measured rate.
    assert all(0.8 < (r.headroom or 0) < 4 for r in call.rows if r.op == "aten::addmm")


def test_a_tiny_model_is_called_launch_bound() -> None:
    profile = record(workload(1, 64))
    assert profile.calls[0].busy_share < 0.7
    assert any("launch-bound" in note and "CUDA graphs" in note for note in profile.notes)


def test_a_profiler_without_device_events_gives_modules_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_host_only(activities: object, **options: Any) -> torch.profiler.profile:
        return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options)

    monkeypatch.setattr(recorder, "torch_profile", on_host_only)
    profile = record(workload(8192, 2048))
    assert any(note.startswith("degraded") and "CUPTI" in note for note in profile.notes)
    assert {r.module for r in profile.calls[0].rows} == {"", "0", "1", "2"}


def test_limits_of_a_gpu_are_measured_by_device_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSWAP_CACHE", str(tmp_path))
    limits = measure("cuda:0")
    assert limits.cache_bytes > 0
    assert limits.matmul_tflop_s["bfloat16"] > 2 * limits.matmul_tflop_s["float32"]
    assert limits.copy_gb_s > 50
