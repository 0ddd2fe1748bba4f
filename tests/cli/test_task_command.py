"""`hotswap task new` and `try`: a task of one's own from a file, and a verdict on a candidate for it."""

from __future__ import annotations

import functools
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import hotswap
from hotswap.cli.main import main
from hotswap.extractor.task import Task
from hotswap.models.errors import RecordError, SpecError

Command = Callable[..., tuple[int, str, str]]

RMSNORM = """
    import torch
    from torch import nn

    SHAPES = {"prefill": 1, "decode": 64}

    def reference(x, weight):
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)

    def inputs(seed, shape_index=0):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn((24, 2)[shape_index], 16, generator=generator)
        return x, nn.Parameter(1 + 0.1 * torch.randn(16, generator=generator))
"""
RIGHT = """
    import torch

    def kernel(x, weight):
        wide = x.contiguous().float()
        return (weight.float() * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
"""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name, text in (("mine.py", RMSNORM), ("right.py", RIGHT), ("wrong.py", RIGHT.replace("1e-6", "1e-2"))):
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path


@pytest.fixture
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Race against eager alone: compiling the rival would take most of a test's time."""
    from hotswap.optimizer import judge

    quick = functools.partial(judge.Judge, inductor=False, rounds=2, threads=1, pool_bytes=1 << 18)
    monkeypatch.setattr(judge, "Judge", quick)
    monkeypatch.setattr(sys.modules[judge.judge.__module__], "Judge", quick)


def test_a_file_becomes_a_task_and_candidates_for_it_are_judged(
    command: Command, here: Path, without_inductor: None
) -> None:
    code, out, _ = command("task", "new", "mine.py", "--json", "--device", "cpu", "--dtype", "bf16")
    made = json.loads(out)
    assert (code, made["folder"], made["notes"]) == (0, "mine-task", [])
    task = Task.load(here / "mine-task" / "task.json")
    assert task.to_dict() == made["task"]
    assert {s.dtype for c in task.cases for s in c.inputs} == {"bfloat16"}

    code, out, _ = command("task", "try", "mine-task", "right.py", "--json", "--block", "0.002")
    verdict = json.loads(out)
    assert (code, verdict["accepted"], verdict["reason"]) == (0, True, None)
    assert [race["case"] for race in verdict["races"]] == ["prefill", "decode"]

    code, out, _ = command("task", "try", "mine-task", "wrong.py", "--json", "--block", "0.002")
    verdict = json.loads(out)
    assert (code, verdict["accepted"], verdict["stage"]) == (1, False, "smoke")
    _, out, _ = command("task", "log", "mine-task", "--json")
    assert json.loads(out)["attempts"][0]["decision"] == "revert"
    same = hotswap.judge(here / "mine-task", here / "wrong.py")
    assert (same.accepted, same.stage, same.source_hash) == (False, "smoke", verdict["source_hash"])


def test_a_new_task_is_shown_with_its_shapes_and_weights(command: Command, here: Path) -> None:
    code, out, err = command("task", "new", "mine.py", "--out", "norm")
    assert code == 0
    assert out.splitlines()[0].startswith("mine  memory, on cpu; fingerprint ")
    assert "64" in next(line for line in out.splitlines() if line.startswith("decode")).split()
    assert "hotswap task try norm candidate.py" in err
    code, out, _ = command("task", "show", "norm")
    assert code == 0
    assert "def reference(x, weight):" in out


def test_a_file_that_proves_nothing_leaves_no_folder(command: Command, here: Path) -> None:
    (here / "nothing.py").write_text(textwrap.dedent(RMSNORM).replace("return torch.nn", "return 0 * torch.nn"))
    code, out, err = command("task", "new", "nothing.py")
    assert (code, out) == (2, "")
    assert "task refused: zeros as the answer would pass" in err
    assert not (here / "nothing-task").exists()


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["new", "gone.py"], 2, "gone.py: no such file"),
        (["new", "right.py"], 2, "expected reference and inputs, or Model, get_inputs, get_init_inputs (KernelBench)"),
        (["new", "mine.py", "--device", "cuda:77"], 3, "--device cuda:77"),
        (["new", "mine.py", "--dtype", "fp17"], 2, "--dtype"),
        (["try", ".", "gone.py"], 2, "gone.py: cannot be read as text"),
        (["try", "nowhere", "right.py"], 2, "nowhere: not a task folder"),
    ],
)
def test_what_does_not_fit_is_one_line_and_its_exit_code(
    command: Command, here: Path, words: list[str], code: int, line: str
) -> None:
    got, out, err = command("task", *words)
    assert (got, out) == (code, "")
    assert line in err
    assert not list(here.glob("*-task"))


def test_judging_what_is_not_there_says_what_was_expected(here: Path) -> None:
    with pytest.raises(SpecError, match=r"gone\.py: cannot be read as text"):
        hotswap.judge(here, here / "gone.py")
    with pytest.raises(RecordError, match=r"task\.json: cannot be read"):
        hotswap.judge(here, here / "right.py")
