"""Where the time goes, counted once and said by name (A01 to A09)."""

from __future__ import annotations

import gzip
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Net, batch, net
from torch import nn
from torch.profiler import record_function

from hotswap.models.errors import RecordError
from hotswap.models.workload import Call, Workload
from hotswap.profiler import notes
from hotswap.profiler import record as recorder
from hotswap.profiler.chrome_trace import parse_trace, read_trace
from hotswap.profiler.record import record
from hotswap.profiler.recording import CallProfile, Limits, Profile

# 1 GB/s is 1000 bytes a us.
LIMITS = Limits("cpu", 1.0, {"float32": 1.0, "bfloat16": 2.0}, 2.0, 0, "2026-01-01T00:00:00Z")


def profile(model: nn.Module, x: torch.Tensor, mode: Any = "inference", steps: int = 1) -> Profile:
    return record(Workload(model, (Call((x,)),), mode), limits=LIMITS, steps=steps)


def one_call(model: nn.Module, x: torch.Tensor, mode: Any = "inference") -> CallProfile:
    return profile(model, x, mode).calls[0]


class Ranged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(256, 256), nn.LayerNorm(256), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with record_function("forward"):
            h = self.norm(self.up(x))
            with record_function("softmax"):
                return self.down(torch.softmax(h.float(), -1))


def test_a01_time_inside_ranges_and_parents_is_counted_once() -> None:
    call = one_call(Ranged(), torch.randn(64, 256))
    rows = sum(row.self_us for row in call.rows)
    assert rows + call.other_us == pytest.approx(call.recorded_us, rel=1e-3)
    assert 0 < rows <= call.recorded_us
    assert 0 < call.coverage <= 1
    assert not {"forward", "softmax"} & {row.op for row in call.rows}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch's, of a graph that its own trees begin with
@pytest.mark.parametrize("how", ["reduce-overhead", "make_graphed_callables"])
def test_a02_device_time_of_cuda_graphs_adds_up_and_has_a_name(how: str) -> None:
    # Served, not trained, and in 16 bits: torch warns of graphs between forward and backward, and of fp32 without TF32.
    model = net(width=256).requires_grad_(False).bfloat16().cuda()
    x = batch(64, 256).bfloat16().cuda()
    if how == "reduce-overhead":
        subject: Any = torch.compile(model, mode="reduce-overhead")
    else:
        subject = torch.cuda.make_graphed_callables(model, (x,))
    for _ in range(4):
        subject(x)
    found = record(Workload(subject, (Call((x,)),)), steps=1)
    call = found.calls[0]
    rows = sum(row.self_us for row in call.rows)
    assert rows > 0
    assert rows == pytest.approx(call.busy_share * call.step_us, rel=0.02)
    assert rows + call.other_us == pytest.approx(call.whole_us, rel=1e-3)
    named = any("graph" in row.op.lower() for row in call.rows) or any("already compiled" in n for n in found.notes)
    assert named


def test_a03_a_gpu_model_without_device_events_is_called_degraded_with_the_cause() -> None:
    host = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 5}]
    said = notes.no_device_events(parse_trace(host), "cuda")
    assert said is not None
    assert said.startswith("degraded")
    assert "CUPTI" in said
    assert notes.no_device_events(parse_trace(host), "cpu") is None


def test_a04_a_profile_that_runs_out_of_memory_is_taken_again_with_less(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, tried = recorder._window, []

    def tight(path: Path, device: torch.device, **options: Any) -> Any:
        tried.append(bool(options.get("record_shapes")))
        if options.get("record_shapes"):
            raise torch.OutOfMemoryError("out of memory")
        return whole(path, device, **options)

    monkeypatch.setattr(recorder, "_window", tight)
    found = profile(net(), batch())
    assert True in tried
    assert False in tried
    assert any("memory" in note for note in found.notes)
    assert any(row.module == "blocks.0.gate" for row in found.calls[0].rows)


def test_a05_rows_carry_module_paths_and_classes_and_the_user_sees_no_deprecation() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        call = one_call(net(), batch())
    assert [str(w.message) for w in shown] == []
    linears = {(row.module, row.module_class) for row in call.rows if row.op == "aten::addmm"}
    assert linears == {(f"blocks.{i}.{name}", "Linear") for i in (0, 1) for name in ("gate", "up", "down")}
    assert ("blocks.1.norm", "Norm") in {(row.module, row.module_class) for row in call.rows}


def test_a06_backward_and_optimizer_of_a_training_step_have_owners() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    call = one_call(model, torch.randn(128, 64), "training")
    found = {(row.op, row.module, row.phase) for row in call.rows}
    assert {("aten::addmm", "0", "forward"), ("aten::mm", "0", "backward"), ("aten::mm", "2", "backward")} <= found
    assert any(phase == "optimizer" for _, _, phase in found)
    assert sum(row.self_us for row in call.rows) + call.other_us == pytest.approx(call.recorded_us, rel=1e-3)


def test_a07_an_already_compiled_model_is_profiled_as_the_model_it_is_made_from() -> None:
    compiled: Any = torch.compile(net(), backend="eager")
    found = profile(compiled, batch())
    assert any("already compiled" in note for note in found.notes)
    ops = {row.op for row in found.calls[0].rows}
    assert "aten::addmm" in ops
    assert not any(op.startswith("triton") for op in ops)


def test_a08_valid_traces_are_read_and_broken_ones_are_one_clear_line(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 5, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 2, "dur": 5, "pid": 0, "tid": 7, "args": {"External id": 1}},
    ]
    plain = tmp_path / "trace.json"
    plain.write_text(json.dumps({"traceEvents": events}))  # one process: no distributedInfo, no memset anywhere
    assert read_trace(plain).busy_us() == 5
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(plain.read_bytes())[:-20])
    for name in ("empty.json", "cut.json.gz"):
        with pytest.raises(RecordError) as raised:
            read_trace(tmp_path / name)
        assert name in str(raised.value)
        assert "\n" not in str(raised.value)
        assert raised.value.exit_code == 4


def test_a09_a_launch_bound_step_is_told_what_kernels_can_win_at_most() -> None:
    call = one_call(net(layers=1), batch(4))
    bound = replace(call, busy_share=0.1, launches=50, step_us=1000.0, step_samples_us=(1000.0,))
    said = notes.launch_bound(bound, "cuda", LIMITS)
    assert said is not None
    for words in ("busy 10%", "at most 1.11x", "CUDA graphs"):
        assert words in said
    assert notes.launch_bound(replace(bound, busy_share=0.95), "cuda", LIMITS) is None


@pytest.mark.gpu
def test_a09_a_tiny_batch_on_a_gpu_is_called_launch_bound() -> None:
    found = record(Workload(Net().cuda().bfloat16().eval(), (Call((batch(16)[:1].cuda().bfloat16(),)),)), steps=1)
    assert any("at most" in note and "CUDA graphs" in note for note in found.notes)
