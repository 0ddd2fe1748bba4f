"""The TensorBoard log directory, with tensorboard and without."""

from __future__ import annotations

import gzip
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from hotswap.models.errors import ResourceExhausted
from hotswap.profiler.recording import CallProfile, Limits, Profile, Row
from hotswap.profiler.tensorboard import write_tensorboard

# What torch-tb-profiler 0.4.3 looks for (torch_tb_profiler/consts.py).
WORKER = re.compile(r"^(.*?)(?:\.\d+)?\.pt\.trace\.json(?:\.gz)?$")


@pytest.fixture
def profile(limits: Limits) -> Profile:
    row = Row("aten::mm", "m", "Linear", (), (), (), 1, 100.0, None, None, None, "overhead")
    call = CallProfile("call", 1.0, (row,), 900.0, (900.0,), 1000.0, 900.0, 1.0, 1, 2**20)
    return Profile("models/some.py:make", "cpu", limits, (call,), ())


def test_traces_lie_where_the_profiler_plugin_looks(profile: Profile, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"traceEvents": []}')
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b"{}"))
    write_tensorboard(profile, [tmp_path / "a.json", tmp_path / "b.json.gz"], tmp_path / "tb")
    names = sorted(p.name for p in (tmp_path / "tb").glob("*.pt.trace.json.gz"))
    assert [match[1] if (match := WORKER.match(name)) else None for name in names] == ["some_py_make"] * 2
    assert [gzip.decompress((tmp_path / "tb" / name).read_bytes()) for name in names] == [b'{"traceEvents": []}', b"{}"]


def test_without_tensorboard_one_line_says_what_is_missing(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said = write_tensorboard(profile, [], tmp_path / "tb")
    assert said is not None
    assert "tensorboard is not installed" in said
    assert "\n" not in said


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs the tensorboard extra")
def test_with_tensorboard_the_figures_are_scalars(profile: Profile, tmp_path: Path) -> None:
    assert write_tensorboard(profile, [], tmp_path / "tb") is None
    assert list((tmp_path / "tb").glob("events.out.tfevents.*"))


def test_a_folder_that_cannot_be_made_is_one_clear_line(profile: Profile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceExhausted, match="choose another --tensorboard"):
        write_tensorboard(profile, [], tmp_path / "file" / "tb")
