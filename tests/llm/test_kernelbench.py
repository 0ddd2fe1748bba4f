"""KernelBench both ways: problems become tasks, winners become ModelNew, and only what counts is scored."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hotswap.benchmarks import kernelbench
from hotswap.benchmarks.kernelbench import Outcome, fast_p, problems, run_problem, table
from hotswap.benchmarks.kernelbench_kit.form import model_new
from hotswap.models.settings import resolve
from hotswap.optimizer.winner import Winner

PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x):
        return torch.relu(x) * self.scale


def get_inputs():
    return [torch.randn(16, 32)]


def get_init_inputs():
    return [32]
"""
KERNEL = '''
"""Packs what it must not remember."""

from __future__ import annotations

import torch

STATIC_WEIGHTS = True
CONSTRAINTS = {"contiguous": ["x"]}


def prepare(x, scale):
    return scale * 1.0


def kernel(x, scale, *, packed):
    return torch.clamp(x, min=0) * packed
'''


def outcome(name: str, skipped: str | None = None, **speedup: float) -> Outcome:
    return Outcome(name, skipped, "kernel" if speedup else "leave", None, speedup, 1, "so")


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("made", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fast_p_counts_right_kernels_that_are_faster_among_those_that_count() -> None:
    found = [outcome("a", eager=2.5, inductor=1.2), outcome("b", eager=1.4), outcome("c"), outcome("d", "degenerate")]
    assert [fast_p(found, p, "eager") for p in (1.0, 1.5, 2.0, 3.0)] == [2 / 3, 1 / 3, 1 / 3, 0.0]
    assert fast_p(found, 1.0, "inductor") == 1 / 3
    assert "skipped  d: degenerate" in table(found)
    assert "3 problems counted, 1 skipped" in table(found)


def test_a_levels_problems_come_in_its_own_order(tmp_path: Path) -> None:
    folder = tmp_path / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    for name in ("10_b.py", "9_a.py", "__init__.py"):
        (folder / name).write_text("")
    assert [p.name for p in problems(tmp_path, 1, "")] == ["9_a.py", "10_b.py"]
    assert [p.name for p in problems(tmp_path, 1, "a")] == ["9_a.py"]
    with pytest.raises(SystemExit, match="give the path of a checkout"):
        problems(tmp_path / "nowhere", 1, "")


def test_a_winner_becomes_a_modelnew_that_sees_its_weights_change(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(model_new(PROBLEM, KERNEL, ["scale"]))
    made = loaded(tmp_path / "made.py")
    old, new = made.Model(32), made.ModelNew(32)
    new.load_state_dict(old.state_dict())
    x = torch.randn(32, 16).t()
    torch.testing.assert_close(new(x), old(x))
    with torch.no_grad():
        for model in (old, new):
            model.scale.mul_(3.0)
    torch.testing.assert_close(new(x), old(x))


def test_a_problem_is_searched_and_its_winner_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge and the search are stood in for: what is here is the way in, and the way out."""
    (tmp_path / "1_relu.py").write_text(PROBLEM)
    source = KERNEL.replace("x, scale", "x, scale")

    def won(folder: Path, *rest: Any) -> Winner:
        assert (folder / "task.json").exists()
        return Winner("1_relu", "f", "kernel", "template", source, None, None, True, 4, "2x")

    monkeypatch.setattr(kernelbench, "searched", won)
    found = run_problem(tmp_path / "1_relu.py", tmp_path, resolve({"device": "cpu"}, folder=tmp_path), 1.0, None)
    assert (found.problem, found.skipped, found.choice, found.attempts) == ("1_relu", None, "kernel", 4)
    made = loaded(tmp_path / "1_relu_new.py")
    model, x = made.ModelNew(32), torch.randn(16, 32)
    torch.testing.assert_close(model(x), torch.relu(x) * model.scale)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return torch.relu(x) * self.scale + torch.rand(())", "two answers"),
        ("return [torch.relu(x), 'text']", "str"),
        ("raise ValueError('nothing here')", "cannot be captured"),
    ],
)
def test_what_is_no_task_is_skipped_with_the_reason(tmp_path: Path, body: str, why: str) -> None:
    (tmp_path / "2_odd.py").write_text(PROBLEM.replace("return torch.relu(x) * self.scale", body))
    found = run_problem(tmp_path / "2_odd.py", tmp_path, resolve({"device": "cpu"}, folder=tmp_path), 1.0, None)
    assert why in (found.skipped or "")


@pytest.mark.slow
def test_a_problem_that_zeros_answer_is_skipped_as_degenerate(tmp_path: Path) -> None:
    (tmp_path / "3_zero.py").write_text(PROBLEM.replace("* self.scale", "* self.scale * 0.0"))
    found = run_problem(tmp_path / "3_zero.py", tmp_path, resolve({"device": "cpu"}, folder=tmp_path), 1.0, None)
    assert found.skipped is not None
    assert fast_p([found], 1.0, "eager") == 0.0
