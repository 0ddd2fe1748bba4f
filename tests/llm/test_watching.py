"""A search that can be watched: a table on a terminal, plain lines elsewhere, scalars for TensorBoard."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotswap.cli import console
from hotswap.cli.live import standing_view
from hotswap.integrator.search_scalars import SearchScalars
from hotswap.optimizer.campaign import Row, Standing, Watching

ROWS = (
    Row("gelu", "at work", 5, 3, 2, 1.5, left_us=20.0, gained_us=80.0, step_us=1000.0),
    Row("linear", "waiting", 0, 0, 0, None, left_us=300.0, gained_us=0.0, step_us=1000.0),
)
STANDING = Standing(ROWS, 12.0, 60.0, "gelu: 5 tried", spent="openai/m: 0.0123 usd")


def shown(width: int = 120) -> str:
    out = Console(file=io.StringIO(), width=width)
    out.print(standing_view(STANDING))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_the_table_has_each_task_its_outcomes_the_cost_and_the_prediction() -> None:
    lines = shown().splitlines()
    assert lines[1].split() == ["gelu", "at", "work", "1.50x", "2", "1", "2", "2.0%"]
    assert lines[2].split() == ["linear", "waiting", "-", "-", "-", "-", "30.0%"]
    assert "predicted for the whole model: 1.087x; openai/m: 0.0123 usd" in lines[3]


def test_on_a_terminal_the_standing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=120)
    monkeypatch.setattr(console, "talk", lambda: terminal)
    with console.progress() as bars:
        assert isinstance(bars, Watching)
        bars("search", 1, 2, "gelu")
        bars.watch(STANDING)
    assert isinstance(terminal.file, io.StringIO)
    assert "predicted for the whole model" in terminal.file.getvalue()


def test_off_a_terminal_only_the_plain_lines_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress() as bars:
        bars.watch(STANDING)
        bars("search", 1, 1)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == ["search: done in 0.0 s"]


def test_scalars_are_written_once_an_attempt(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    accumulator: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")

    with SearchScalars(tmp_path) as scalars:
        scalars.write(STANDING)
        scalars.write(STANDING)
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, round(e.value, 3)) for e in events.Scalars("search/predicted_speedup")] == [(5, 1.087)]
    assert [e.value for e in events.Scalars("search/best/gelu")] == [1.5]
    assert [e.value for e in events.Scalars("search/rejected")] == [2.0]
