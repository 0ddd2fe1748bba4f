"""A fast part of the sweep: models of every kind are patched with stand-ins, verified and given back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SWEEP = Path(__file__).parents[2] / "benchmarks" / "sweep.py"

# A causal and an encoder-decoder language model, vision by convolutions and by patches, and a mixture of experts.
TYPES = ("llama", "t5", "convnext", "vit", "qwen2_moe")
CONTROL = (
    "data-branch", "expert-choice", "lstm-gru", "writes-input", "writes-buffer", "aliases", "returns-nested",
    "returns-dataclass", "returns-none", "autograd-function", "numpy-inside", "unet",
)  # fmt: skip


def sweep(out: Path, *names: str) -> dict[str, dict[str, Any]]:
    command = [sys.executable, str(SWEEP), "--only", ",".join(names), "--no-derive", "--out", str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    rows: dict[str, dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["rows"]
    return {name.partition(":")[2]: row for name, row in rows.items()}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return sweep(tmp_path_factory.mktemp("sweep") / "rows.json", *TYPES, *CONTROL, "scripted")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TYPES, *CONTROL])
def test_a_model_is_patched_verified_and_given_back(swept: dict[str, dict[str, Any]], name: str) -> None:
    row = swept[name]
    assert (row["outcome"], row["why"]) == ("patched", "equal bit for bit"), row
    assert row["facts"]["kernel_calls"] > 0


@pytest.mark.slow
def test_what_dynamo_gives_no_graph_of_is_swapped_module_by_module(swept: dict[str, dict[str, Any]]) -> None:
    assert {name: swept[name]["facts"]["way"] for name in ("lstm-gru", "expert-choice", "unet")} == {
        "lstm-gru": "module",
        "expert-choice": "module",
        "unet": "graph",
    }


@pytest.mark.slow
def test_a_scripted_model_is_not_extractable_and_says_why(swept: dict[str, dict[str, Any]]) -> None:
    assert swept["scripted"]["outcome"] == "not extractable"
    assert "TorchScript" in swept["scripted"]["why"]


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    sweep(out, "reused")
    first = out.read_text(encoding="utf-8")
    both = sweep(out, "reused", "returns-none")
    assert set(both) == {"reused", "returns-none"}
    assert json.loads(first)["rows"]["elsewhere:reused"] == both["reused"]


def test_a_stand_in_that_is_wrong_is_found() -> None:
    """Nothing would be shown by a sweep whose checks cannot fail."""
    import torch

    from hotswap.benchmarks.sweep_kit import elsewhere, stand_in, trial
    from hotswap.profiler.recording import Limits

    limits = Limits("cpu", 10.0, {"float32": 0.05}, 1.0, 1 << 25, "")
    with pytest.MonkeyPatch.context() as patch:
        wrong = stand_in._KERNEL.replace("return tuple(made)", "return tuple(m * 1.5 for m in made)")
        patch.setattr(stand_in, "_KERNEL", wrong)
        row = trial.try_model("x", lambda: (elsewhere.workload("reused"), ""), limits, derive=False)
    torch._dynamo.reset()
    assert row.outcome == "wrong"
    assert "checks" in row.why
