"""A task that stands in no run: it is searched, its history is in its own folder, and a search goes on from there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripted import ScriptedExecutor, kernel

from hotswap.cli.main import main
from hotswap.extractor.task import Task
from hotswap.optimizer.attempt import Attempt
from hotswap.optimizer.candidate import Candidate
from hotswap.optimizer.winner import Winner


class Script:
    """Proposes given sources in order, every time it is made anew."""

    name = "scripted"

    def __init__(self, *sources: str) -> None:
        self.sources = list(sources)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        return Candidate(self.sources.pop(0), self.name, None, {}) if self.sources else None


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, gelu: Task) -> ScriptedExecutor:
    """Stand in for the judge and the templates; commands, ledger and search are the real ones."""
    made, module = ScriptedExecutor(), "hotswap.integrator.search_tasks"
    monkeypatch.setattr(f"{module}._executor", lambda tasks, settings: made)
    monkeypatch.setattr(f"{module}.load_task", lambda folder: SimpleNamespace(task=gelu, source=""))
    monkeypatch.setattr(f"{module}.proposers", lambda loaded: [Script(kernel(9.0), kernel(6.0), kernel(8.0))])
    return made


def test_a_search_of_one_task_keeps_its_ledger_kernel_and_winner_in_the_folder(
    executor: ScriptedExecutor, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", str(folder), "--budget", "20s", "--json"]) == 0
    (winner,) = json.loads(capsys.readouterr().out)["winners"]
    assert Winner.from_dict(winner) == Winner.load(folder / "winner.json")
    assert (winner["choice"], winner["source"]) == ("kernel", kernel(6.0))
    assert (folder / "kernel.py").read_text() == kernel(6.0)

    assert main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "ends with kernel" in shown
    assert main(["task", "log", str(folder), "--json"]) == 0
    attempts = json.loads(capsys.readouterr().out)["attempts"]
    assert [a["decision"] for a in attempts] == ["revert", "keep", "keep"]


def test_a_second_search_of_it_repeats_nothing(executor: ScriptedExecutor, folder: Path) -> None:
    assert main(["optimize", str(folder), "--budget", "20s"]) == 0
    before = len(executor.judge.asked)
    assert main(["optimize", str(folder), "--budget", "20s"]) == 0
    assert len(executor.judge.asked) == before == 3


def test_a_task_whose_inputs_prove_nothing_is_left_alone_with_the_reason(
    executor: ScriptedExecutor, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    executor.refuse = folder.name
    assert main(["optimize", str(folder), "--budget", "20s"]) == 0
    assert Winner.load(folder / "winner.json").reason == "its inputs prove nothing"
