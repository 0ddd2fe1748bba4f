"""`hotswap optimize --compile-only` lists what the kernels of a run take of a GPU, and runs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hotswap.cli.optimize import command
from hotswap.extractor.new_task import new_task
from hotswap.extractor.task import Extraction, Task
from hotswap.integrator.run_directory import RunDirectory

SOURCE = """
import torch

def reference(x, w):
    return (torch.rms_norm(x, (x.shape[-1],)) * w,)

def inputs(seed, shape_index=0):
    return torch.randn(6, 48), torch.randn(48)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with one task that was extracted."""
    folder = tmp_path_factory.mktemp("compile")
    (folder / "norm.py").write_text(SOURCE)
    with RunDirectory.create("norm", out=folder / "run") as directory:
        new_task(folder / "norm.py", folder / "made")
        task = Task.load(folder / "made" / "task.json")
        directory.tasks.mkdir(exist_ok=True)
        (folder / "made").rename(directory.tasks / f"00-{task.name}")
        Extraction("norm", (task,), (), 1, (), 1.0).save(directory.extraction)
        directory.finish("extract", 1.0)
        return directory.folder


def test_every_setting_that_does_something_else_is_listed_with_what_it_takes(run: Path) -> None:
    result = CliRunner().invoke(command, [str(run), "--compile-only", "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    (task,) = json.loads(result.stdout)["tasks"]
    assert task["target"]["capability"] >= 70
    assert len(task["settings"]) > 10
    for setting in task["settings"]:
        (kernel,) = setting["build"]["kernels"]
        assert kernel["registers"] >= 8
        assert setting["trouble"] is None
    plain = CliRunner().invoke(command, [str(run), "--compile-only"], catch_exceptions=False).stdout
    assert "best guess" in plain
    assert "more settings do the same as one above" in plain


def test_nothing_of_the_run_changes(run: Path) -> None:
    before = sorted(p for p in run.rglob("*") if p.is_file())
    CliRunner().invoke(command, [str(run), "--compile-only"], catch_exceptions=False)
    assert sorted(p for p in run.rglob("*") if p.is_file() and "__pycache__" not in p.parts) == [
        p for p in before if "__pycache__" not in p.parts
    ]
