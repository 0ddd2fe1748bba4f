"""`hotswap profile` on a user's own file, end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hotswap.cli.profile import command
from hotswap.profiler import limits as measuring
from hotswap.profiler.recording import Limits, Profile

MODEL = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)), torch.randn(8, 16)
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits) -> str:
    monkeypatch.setattr(measuring, "_measure", lambda device: limits)
    (tmp_path / "mine.py").write_text(MODEL)
    return f"{tmp_path / 'mine.py'}:make"


def test_the_table_is_printed_and_everything_asked_for_is_written(spec: str, tmp_path: Path) -> None:
    out, trace, board = tmp_path / "profile.json", tmp_path / "trace.json.gz", tmp_path / "tb"
    arguments = [spec, "--device", "cpu", "--out", str(out), "--trace", str(trace), "--tensorboard", str(board)]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    for words in ("addmm", "gelu", "other", "100.0%", "recorded step"):
        assert words in result.stdout
    assert Profile.load(out).calls[0].rows
    assert trace.read_bytes()[:2] == b"\x1f\x8b"
    assert list(board.glob("*.pt.trace.json.gz"))


def test_json_is_the_only_thing_on_stdout(spec: str) -> None:
    arguments = [spec, "--device", "cpu", "--json", "--group-by", "op", "--sort-by", "calls", "--row-limit", "2"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    plain = json.loads(result.stdout)
    assert len(plain["calls"][0]["rows"]) == 4
    assert plain["group_by"] == "op"


def test_help_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from hotswap.cli.profile import command; command(['--help'], standalone_mode=False); "
        "sys.exit(bool({'torch', 'transformers', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--sort-by" in done.stdout
