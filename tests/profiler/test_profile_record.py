"""Recording real small models: where time goes, what the rows say, and that nothing is left behind."""

from __future__ import annotations

import copy
import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_registry

from hotswap.models.errors import InputError, ModelRaised, ResourceExhausted
from hotswap.models.workload import Call, Workload
from hotswap.profiler import record as recorder
from hotswap.profiler.chrome_trace import read_trace
from hotswap.profiler.record import record
from hotswap.profiler.recording import CallProfile, Limits, Profile, Row


class SoftmaxInRange(nn.Module):
    """A range of the user's own around ops that call ops: what counts times twice where totals are added."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(256, 256), nn.LayerNorm(256), nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("forward"):
            y: torch.Tensor = self.down(self.norm(self.up(x)).float().softmax(-1))
            return y


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, width), nn.GELU())

    def forward(self, *, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.mlp(self.norm(x))
        return y


class TwoBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(32) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x=x)
        return x


class Function(nn.Module):
    """A module around any function of its arguments."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def profile_of(model: nn.Module, *args: Any, limits: Limits, **kwargs: Any) -> CallProfile:
    return record(Workload(model, (Call(args, kwargs),)), limits=limits, steps=1).calls[0]


def compiled_module(model: nn.Module) -> nn.Module:
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    return compiled


def rows_named(call: CallProfile, op: str) -> list[Row]:
    return [row for row in call.rows if row.op == op]


def test_self_times_and_other_add_up_to_the_recorded_step_exactly_once(limits: Limits) -> None:
    call = profile_of(SoftmaxInRange(), torch.randn(64, 256), limits=limits)
    total = sum(row.self_us for row in call.rows)
    assert total + call.other_us == pytest.approx(call.recorded_us, rel=1e-3)
    assert 0 < total <= call.recorded_us
    # The softmax itself and what it spends above it are two rows; neither holds the other's time.
    assert {"aten::softmax", "aten::_softmax"} <= {row.op for row in call.rows}
    assert call.coverage == pytest.approx(total / call.recorded_us, rel=1e-3)


def test_every_row_bears_its_modules_path_and_class_and_no_deprecation_is_shown(limits: Limits) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        call = profile_of(TwoBlocks(), torch.randn(8, 32), limits=limits)
    assert [str(w.message) for w in shown] == []
    found = {(row.op, row.module, row.module_class) for row in call.rows}
    assert found >= {
        ("aten::addmm", "blocks.0.mlp.0", "Linear"),
        ("aten::addmm", "blocks.1.mlp.0", "Linear"),
        ("aten::gelu", "blocks.1.mlp.1", "GELU"),
        ("aten::native_layer_norm", "blocks.0.norm", "LayerNorm"),
        ("aten::add", "blocks.1", "Block"),
    }
    assert all(row.module_class for row in call.rows)


def test_rows_carry_shapes_dtypes_strides_and_a_floor(limits: Limits) -> None:
    call = profile_of(nn.Linear(32, 16).bfloat16(), torch.randn(8, 32).bfloat16(), limits=limits)
    (row,) = rows_named(call, "aten::addmm")
    assert row.shapes == ((16,), (8, 32), (32, 16))
    assert row.strides == ((1,), (32, 1), (1, 32))
    assert row.dtypes == ("bfloat16",) * 3
    moved = 2 * (16 + 8 * 32 + 32 * 16 + 8 * 16)
    assert (row.bytes, row.flops, row.source) == (moved, 2 * 8 * 32 * 16, "memory")
    assert row.floor_us == moved / 1000


def test_a_module_called_with_two_shapes_has_a_row_for_each(limits: Limits) -> None:
    shared = nn.Linear(16, 16)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = shared

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.mlp(x) + self.mlp(x[:, :1].contiguous())
            return y

    call = profile_of(Twice(), torch.randn(4, 8, 16), limits=limits)
    rows = rows_named(call, "aten::addmm")
    assert {(row.module, row.shapes[1], row.calls) for row in rows} == {("mlp", (32, 16), 1), ("mlp", (4, 16), 1)}


def test_list_arguments_have_shapes_strides_and_dtypes(limits: Limits) -> None:
    model = Function(lambda a, b: torch.cat([a, b.t()], 0)[torch.tensor([0, 2])])
    call = profile_of(model, torch.randn(4, 6), torch.randn(6, 3), limits=limits)
    (cat,) = rows_named(call, "aten::cat")
    assert cat.shapes == ((4, 6), (3, 6))
    assert cat.strides == ((6, 1), (1, 3))
    assert cat.dtypes == ("float32", "float32")
    # The trace leaves the list of optional index tensors out altogether.
    (index,) = rows_named(call, "aten::index")
    assert index.shapes == ((7, 6), (2,))
    assert index.dtypes == ("float32", "int64")


def test_views_have_no_floor_to_speak_of(limits: Limits) -> None:
    call = profile_of(Function(lambda x: x.transpose(0, 1).unsqueeze(0)), torch.randn(64, 64), limits=limits)
    assert {(r.op, r.bytes, r.floor_us, r.source) for r in call.rows} >= {("aten::transpose", 0, 0.0, "overhead")}


def test_the_plain_step_is_sampled_at_least_five_times(limits: Limits) -> None:
    call = profile_of(nn.Linear(8, 8), torch.randn(2, 8), limits=limits)
    assert len(call.step_samples_us) >= 5
    assert min(call.step_samples_us) <= call.step_us <= max(call.step_samples_us)
    assert call.busy_share == 1.0
    assert call.launches == sum(row.calls for row in call.rows)


def test_peak_memory_is_weights_and_what_the_step_held_at_once(limits: Limits) -> None:
    count = 2**20
    call = profile_of(Function(lambda x: (x + 1).sum() + (x * 2).sum()), torch.randn(count), limits=limits)
    # One temporary at a time, not two: the first is gone before the second is made. Scalars and scratch are small.
    assert 4 * count <= call.peak_bytes < 6 * count


def test_a_compiled_model_is_profiled_eagerly_and_says_so(limits: Limits) -> None:
    compiled = compiled_module(TwoBlocks())
    profile = record(Workload(compiled, (Call((torch.randn(8, 32),)),)), limits=limits, steps=1)
    assert any("already compiled" in note for note in profile.notes)
    assert ("aten::addmm", "blocks.0.mlp.0") in {(r.op, r.module) for r in profile.calls[0].rows}


def test_a_module_compiled_in_place_inside_the_model_keeps_its_paths(limits: Limits) -> None:
    model = TwoBlocks()
    model.blocks[0].compile(backend="eager")
    model.blocks[1] = compiled_module(model.blocks[1])
    profile = record(Workload(model, (Call((torch.randn(8, 32),)),)), limits=limits, steps=1)
    assert any("already compiled" in note for note in profile.notes)
    modules = {r.module for r in profile.calls[0].rows if r.op == "aten::addmm"}
    assert modules == {"blocks.0.mlp.0", "blocks.1.mlp.0"}


def _hooks(model: nn.Module) -> dict[str, Any]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called", "_forward_hooks_with_kwargs")
    return {f"{path}.{kind}": dict(getattr(m, kind)) for path, m in model.named_modules() for kind in kinds}


def _global_hooks() -> list[int]:
    kinds = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_forward_hooks_always_called")
    return [len(getattr(module_registry, kind)) for kind in kinds]


def test_the_users_hooks_run_as_before_and_none_of_ours_stays(limits: Limits) -> None:
    model, seen = TwoBlocks(), []
    model.blocks[0].register_forward_hook(lambda *_, **__: seen.append("forward"), with_kwargs=True)
    model.blocks[0].register_forward_pre_hook(lambda *_: seen.append("pre"))
    before = _hooks(model)
    profile_of(model, torch.randn(8, 32), limits=limits)
    assert _hooks(model) == before
    assert _global_hooks() == [0, 0, 0]
    seen.clear()
    model(torch.randn(8, 32))
    assert seen == ["pre", "forward"]


@pytest.mark.parametrize("only_while_recorded", [False, True])
def test_an_exception_in_the_model_is_one_line_and_leaves_no_hook(limits: Limits, only_while_recorded: bool) -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        if any(_global_hooks()) or not only_while_recorded:
            raise ZeroDivisionError("no\nmore")
        return x

    with pytest.raises(ModelRaised, match="ZeroDivisionError: no more") as caught:
        profile_of(nn.Sequential(Function(fail)), torch.ones(2), limits=limits)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert _global_hooks() == [0, 0, 0]


def test_what_a_step_would_grow_is_copied_for_each_step(limits: Limits) -> None:
    class Cache:
        def __init__(self) -> None:
            self.keys: list[torch.Tensor] = []

    def append(x: torch.Tensor, cache: Cache) -> torch.Tensor:
        cache.keys.append(x)
        return torch.cat(cache.keys)

    cache = Cache()
    call = profile_of(Function(append), torch.ones(3), cache=cache, limits=limits)
    assert cache.keys == []
    assert rows_named(call, "aten::cat")[0].shapes == ((3,),)


def test_buffers_and_the_random_state_are_given_back(limits: Limits) -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout()).train()
    x = torch.randn(8, 4)
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    profile_of(model, x, limits=limits)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())


def test_a_training_step_has_backward_rows_by_module_and_the_optimizer_apart(limits: Limits) -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64))
    before = copy.deepcopy(model.state_dict())
    profile = record(Workload(model, (Call((torch.randn(256, 256),)),), mode="training"), limits=limits, steps=3)
    call = profile.calls[0]
    found = {(r.op, r.module, r.phase) for r in call.rows}
    assert found >= {
        ("aten::addmm", "0", "forward"),
        ("aten::mm", "2", "backward"),
        ("aten::mm", "0", "backward"),
        ("aten::gelu_backward", "1", "backward"),
    }
    assert any(phase == "optimizer" for _, _, phase in found)
    assert all(r.floor_us for r in call.rows if r.op == "aten::mm")
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_kept_trace_is_gzip_with_the_modules_in_it_and_each_call_has_its_own(tmp_path: Path, limits: Limits) -> None:
    calls = (Call((torch.randn(8, 32),), name="short"), Call((torch.randn(64, 32),), name="long"))
    profile = record(Workload(TwoBlocks(), calls), limits=limits, steps=1, trace=tmp_path / "trace.json.gz")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["trace-long.json.gz", "trace-short.json.gz"]
    plain = json.loads(gzip.decompress((tmp_path / "trace-long.json.gz").read_bytes()))
    assert "nn.Module: blocks.0.norm [LayerNorm]" in {e.get("name") for e in plain["traceEvents"]}
    assert read_trace(tmp_path / "trace-short.json.gz").find_range(recorder.STEP_RANGE) is not None
    assert [c.name for c in profile.calls] == ["short", "long"]


def test_a_profile_saves_and_loads(tmp_path: Path, limits: Limits) -> None:
    profile = record(Workload(TwoBlocks(), (Call((torch.randn(8, 32),)),), spec="two"), limits=limits, steps=1)
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile


def test_out_of_memory_under_the_profiler_is_tried_again_without_shapes(
    monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    whole = recorder._window

    def tight(path: Path, device: torch.device, **options: Any) -> Any:
        if options.get("record_shapes"):
            raise torch.OutOfMemoryError("out of memory")
        return whole(path, device, **options)

    monkeypatch.setattr(recorder, "_window", tight)
    profile = record(Workload(TwoBlocks(), (Call((torch.randn(8, 32),)),)), limits=limits)
    assert any("without" in note and "memory" in note for note in profile.notes)
    assert {r.module for r in profile.calls[0].rows} >= {"blocks.0.mlp.0"}


def test_a_model_that_does_not_fit_at_all_says_so(limits: Limits) -> None:
    def too_much(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**60, dtype=torch.uint8)

    with pytest.raises(ResourceExhausted, match="smaller batch"):
        profile_of(Function(too_much), torch.ones(1), limits=limits)


def test_a_model_without_ops_is_all_other(limits: Limits) -> None:
    call = profile_of(nn.Identity(), torch.ones(1), limits=limits)
    assert call.rows == ()
    assert call.other_us == call.recorded_us


def test_a_workload_without_calls_is_refused(limits: Limits) -> None:
    with pytest.raises(InputError, match="no example call"):
        record(Workload(nn.Identity(), ()), limits=limits)


def test_the_fast_path_that_hooks_switch_off_is_profiled_as_it_runs(limits: Limits) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    call = profile_of(layer, torch.randn(2, 4, 16), limits=limits)
    assert rows_named(call, "aten::_transformer_encoder_layer_fwd")


def test_a_module_that_raises_into_a_parent_that_catches_leaves_the_parent_current(limits: Limits) -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        raise ValueError

    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Function(fail)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                self.inner(x)
            except ValueError:
                return x.exp()
            return x

    (row,) = rows_named(profile_of(nn.Sequential(Catches()), torch.ones(4), limits=limits), "aten::exp")
    assert (row.module, row.module_class) == ("0", "Catches")


def test_the_median_of_the_recorded_steps_is_the_profile(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    walls = iter([30.0, 10.0, 20.0])
    number = 0

    def step_of_known_length(step: Any, modules: Any) -> float:
        nonlocal number
        number += 1
        recorded(step, modules)
        return next(walls)

    recorded = recorder._recorded_step
    monkeypatch.setattr(recorder, "_recorded_step", step_of_known_length)
    model = Function(lambda x: x[:number].exp() if number else x)
    call = record(Workload(model, (Call((torch.ones(8),)),)), limits=limits, steps=3).calls[0]
    assert rows_named(call, "aten::exp")[0].shapes == ((3,),)
