"""A run remembers what it was asked for, and the commands that go on from it ask for the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotswap.cli.main import main
from hotswap.cli.request import Request, resumable
from hotswap.integrator.run_directory import RunDirectory, load_run
from hotswap.models.errors import Interrupted, SpecError

UNSET: dict[str, Any] = {"config": None, "random_weights": False, "trust_remote_code": False, "inputs": None}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(**flags: Any) -> Request:
    return Request.from_flags("gpt2@tiny", UNSET | flags)


def test_what_was_asked_comes_back_from_the_run() -> None:
    request = asked(
        budget="90s", seq_len=("64", "128"), batch="2", dtype="fp32", out="mine", random_weights=True, inputs="a.py:f"
    )
    with request.new_directory() as directory:
        folder = directory.folder
    again = Request.of_run(load_run(folder), {})
    assert again.model == "gpt2@tiny"
    assert (again.random_weights, again.trust_remote_code, again.inputs) == (True, False, "a.py:f")
    for name in ("budget_s", "seq_len", "batch", "dtype", "seed", "top", "mode", "threads"):
        assert getattr(again.settings, name) == getattr(request.settings, name), name


def test_a_flag_given_now_wins_and_the_environment_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(budget="90s", top="3", out="mine").new_directory() as directory:
        run = load_run(directory.folder)
    monkeypatch.setenv("HOTSWAP_TOP", "9")
    again = Request.of_run(run, {"budget": "5s", "top": None, "seq_len": ()})
    assert (again.settings.budget_s, again.settings.top) == (5.0, 3)


def test_a_run_of_a_model_handed_over_in_python_says_where_to_go_on() -> None:
    with RunDirectory.create("Net", settings={"budget": "60"}) as directory:
        run = load_run(directory.folder)
    with pytest.raises(SpecError, match="handed over in Python"):
        Request.of_run(run, {})


def test_an_interruption_names_the_run_and_how_to_go_on() -> None:
    directory = asked(out="mine").new_directory()
    with pytest.raises(Interrupted, match="`hotswap resume mine` continues it"), resumable(directory):
        raise KeyboardInterrupt
    RunDirectory.open(directory.folder).close()  # the lock is free again


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["resume", "nowhere"], 4, "no run directory there"),
        (["resume", "last"], 4, "`hotswap run MODEL` makes one"),
        (["optimize", "begun"], 4, "has no tasks yet; `hotswap resume begun`"),
        (["integrate", "begun"], 4, "was not searched to its end; `hotswap resume begun`"),
        (["verify", "begun", "--batch", "none"], 2, "flag --batch"),
        (["extract", "begun.py:make"], 2, "begun.py"),
        (["run", "gpt2@tinny"], 2, "tiny"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_gone_on_with_is_one_line(
    words: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(out="begun").new_directory().close()
    capsys.readouterr()
    assert main(words) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert line in said.err
    assert said.err.count("\n") == 1


def test_a_run_in_use_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with asked(out="mine").new_directory():
        assert main(["resume", "mine"]) == 4
    assert "mine" in capsys.readouterr().err
