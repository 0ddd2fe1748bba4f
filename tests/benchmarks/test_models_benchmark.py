"""The model benchmark, dry: an arm that fails is left out with its cause, whatever it takes with it."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hotswap.benchmarks import models
from hotswap.benchmarks.models_kit import race
from hotswap.benchmarks.models_kit.account import Reads
from hotswap.benchmarks.models_kit.arms import BuiltArm
from hotswap.benchmarks.models_kit.blame import ArmLost, Watch, cause
from hotswap.benchmarks.models_kit.cached import cached_bytes, stepping
from hotswap.benchmarks.models_kit.suite import Row, Size, build

ROW = Row("bert-base", 2, 32)
HOW = race.Asked("tiny", "cpu", ("compile",), ("eager",), "none", race_seconds=1.0)


def silent(_: str) -> None:
    pass


@pytest.fixture
def arms(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arms that are the model in eager, but for those given another call here."""
    given: dict[str, Any] = {}

    def build_arm(name: str, model: Any, call: Any, kernels: str) -> BuiltArm:
        made = given.get(name, lambda run: run)(lambda: model(*call.args, **call.kwargs))
        made()
        return BuiltArm(name, made, 0.0, 0.0)

    monkeypatch.setattr(race, "build_arm", build_arm)
    return given


def test_the_cause_of_what_dynamo_says_of_a_backend_is_the_backends_own_exception_and_where_it_was() -> None:
    def backend(gm: Any, inputs: Any) -> Any:
        raise KeyError("no such overload")

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as met:
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))  # type: ignore[no-untyped-call]
    said = cause(met.value)
    assert said.startswith("KeyError: 'no such overload' (benchmarks/test_models_benchmark.py:")


def test_an_arm_that_cannot_be_built_is_noted_with_its_cause_and_the_others_are_timed(arms: dict[str, Any]) -> None:
    def fails(run: Any) -> Any:
        raise ValueError("no kernel for this")

    arms["compile"] = fails
    made = {r["arm"]: r for r in race.measured(ROW, HOW, silent, Watch())}
    assert made["compile"]["note"].startswith("ValueError: no kernel for this (")
    assert made["ours"]["ms"] > 0


def test_an_arm_that_takes_the_device_with_it_is_named(arms: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(run: Any) -> Any:
        raise RuntimeError("CUDA error: unspecified launch failure")

    arms["ours (eager)"] = fails
    monkeypatch.setattr(race, "device_is_lost", lambda: True)
    with pytest.raises(ArmLost, match="unspecified launch failure") as lost:
        race.measured(ROW, HOW, silent, Watch())
    assert lost.value.arm == "ours (eager)"


def test_an_arm_that_fails_while_it_is_compared_or_timed_is_named(arms: dict[str, Any]) -> None:
    calls = iter(range(100))

    def fails_later(run: Any) -> Any:
        return lambda: run() if next(calls) < 3 else 1 // 0

    arms["compile"] = fails_later
    with pytest.raises(ArmLost, match="ZeroDivisionError") as lost:
        race.measured(ROW, HOW, silent, Watch())
    assert lost.value.arm == "compile"


def test_an_arm_left_out_beforehand_is_in_the_rows_with_the_reason(arms: dict[str, Any]) -> None:
    how = race.Asked("tiny", "cpu", ("compile",), ("eager",), "none", race_seconds=1.0, without={"compile": "it died"})
    made = {r["arm"]: r for r in race.measured(ROW, how, silent, Watch())}
    assert (made["compile"]["ms"], made["compile"]["note"]) == (None, "it died")


def test_a_decode_step_begins_where_the_last_one_began() -> None:
    model, call = build(Row("llama-3.2-1b", 2, 8, decode=True), "tiny", "cpu")
    (cache,) = (v for v in call.kwargs.values() if hasattr(v, "layers"))
    step = stepping(call, lambda: model(**call.kwargs).logits)
    with torch.no_grad():
        assert torch.equal(step(), step())
    assert {int(layer.cumulative_length) for layer in cache.layers} == {32}
    room = cache.layers[0].keys.shape[2]
    held = sum(t.numel() * 2 for layer in cache.layers for t in (layer.keys, layer.values))
    assert cached_bytes(call) == held * 32 // room


def test_a_decode_step_over_a_window_that_is_full_begins_where_the_last_one_began() -> None:
    model, call = build(Row("gpt-oss-20b", 2, 8, decode=True), "tiny", "cpu")
    (cache,) = (v for v in call.kwargs.values() if hasattr(v, "layers"))
    window, whole = cache.layers
    assert (window.keys.shape[2], window.get_seq_length(), int(whole.get_seq_length())) == (8, 32, 32)
    step = stepping(call, lambda: model(**call.kwargs).logits)
    with torch.no_grad():
        assert torch.equal(step(), step())
    assert window.get_seq_length() == 32
    assert cached_bytes(call) == 2 * 2 * 2 * 2 * 16 * (8 + 32)  # keys and values, bf16, rows, heads, width, tokens


class Sparse(torch.nn.Module):
    """A table of 100 rows, a head of its own, and four experts; all but the table and the experts are read whole."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 16, dtype=torch.bfloat16)
        self.experts = torch.nn.Parameter(torch.randn(4, 16, 32, dtype=torch.bfloat16))
        self.head = torch.nn.Linear(32, 8, dtype=torch.bfloat16)
        self.unused = torch.nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return self.head(torch._grouped_mm(self.table(ids), self.experts, offs=ends))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("ends", "hit"), [([0, 3, 3, 5], 2), ([1, 2, 3, 5], 4)])
def test_of_tables_and_experts_only_what_rows_choose_must_be_read(ends: list[int], hit: int) -> None:
    model, ids = Sparse(), torch.tensor([3, 7, 11, 3, 99])
    with torch.no_grad(), Reads(model.parameters()) as reads:
        model(ids, torch.tensor(ends, dtype=torch.int32))
    assert reads.bytes == 2 * (5 * 16 + hit * 16 * 32 + 32 * 8 + 8)


@pytest.mark.parametrize(("size", "part"), [("full", "slice"), ("slice", "slice"), ("tiny", "tiny")])
def test_a_sliced_workload_is_full_in_width_alone(size: Size, part: str) -> None:
    row = Row("gpt-oss-20b", 1, 2048, sliced=True)
    assert row.workload(size) == f"gpt-oss-20b@{part}"
    assert Row("gpt2", 1, 8).workload("full") == "gpt2@full"


CHILD = """
import json, os, sys
from pathlib import Path
said = sys.stdin.readline()
if not said:
    sys.exit()
given = json.loads(said)
out, without = Path(given["out"]), given["without"]
if "ours (cudagraph)" not in without:
    (out.parent / "arm.txt").write_text("ours (cudagraph)")
    os._exit(11)
if "max-autotune" not in without:
    out.write_text(json.dumps({"lost": "max-autotune", "note": "CUDA error"}))
else:
    out.write_text(json.dumps([without]))
"""


def test_a_row_is_measured_again_without_the_arms_that_ended_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    monkeypatch.setattr(models, "__file__", str(child))
    monkeypatch.setattr(sys, "argv", ["models.py"])
    with contextlib.closing(models.Stable()) as stable:
        assert models._in_processes(0, 60.0, stable) == [
            {"ours (cudagraph)": "the process died with status 11", "max-autotune": "CUDA error"}
        ]


def test_workloads_are_measured_in_the_order_they_are_asked_for() -> None:
    titles = [title for _, title in models._wanted("full", ["siglip", "llama-3.1-8b", "so400m"])]
    assert titles[0].startswith("siglip-so400m@full")
    assert len(titles) == len(set(titles)) == 5
    assert len(models._wanted("full", [])) == len(models.ROWS)


@pytest.mark.parametrize("row", [r for r in models.ROWS if r.text], ids=lambda row: row.model)
def test_a_diffusion_transformer_gives_a_velocity_for_each_token_of_the_image(row: Row) -> None:
    model, call = build(row, "tiny", "cpu")
    with torch.no_grad():
        made = model(**call.kwargs)
    assert made.shape == call.kwargs["image"].shape
    assert made.dtype == torch.bfloat16
    assert row.shape("full") == "1x4096+512"
