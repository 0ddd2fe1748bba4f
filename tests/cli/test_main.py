"""The frame of the command line: quick help, one line for every failure, and its exit code."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from hotswap.cli.main import COMMANDS, command, explain, main
from hotswap.models import errors


def hotswap(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", "import sys; from hotswap.cli.main import main; sys.exit(main())", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_help_is_there_before_one_looks_up() -> None:
    spent = []
    for _ in range(3):
        start = time.perf_counter()
        done = hotswap("--help")
        spent.append(time.perf_counter() - start)
    assert done.returncode == 0
    assert min(spent) < 0.4


def test_help_names_every_command_exit_code_and_environment_variable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert all(f"\n    {code} " in text for code in (0, 1, 2, 3, 4, 130))
    assert "HOTSWAP_CACHE" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_there_and_teaches_by_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"hotswap {name}" in text.split("\n", 1)[1], "no example"
    assert "--debug" in text


def test_a_misspelt_command_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pofile"]) == 2
    assert capsys.readouterr().err == "hotswap: no command 'pofile'; did you mean 'profile'? (try `hotswap --help`)\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.VerificationFailed("logits differ"), 1),
        (errors.SpecError("no such model"), 2),
        (errors.EnvironmentMissing("g++ is not there"), 3),
        (errors.RecordLocked("runs/a: another process writes to it"), 4),
        (errors.Interrupted("stopped"), 130),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (MemoryError(), 3),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"), 3),
        (OSError(errno.ENOSPC, "No space left on device", "runs/a/report.json"), 3),
        (ModuleNotFoundError("No module named 'litellm'", name="litellm"), 3),
        (click.UsageError("no such option"), 2),
        (ZeroDivisionError("division by zero"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_every_failure_is_one_line_and_a_documented_code(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch  # noqa: F401  # the allocator's error is recognised only where torch is loaded

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(command, "main", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.delenv("HOTSWAP_DEBUG", raising=False)
    assert main([]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("hotswap: ")


def test_a_fault_of_ours_is_called_one_and_says_how_to_see_more() -> None:
    line, code = explain(KeyError("shape"))
    assert (line, code) == (
        "unexpected KeyError: 'shape'; this is a fault in hotswap; `--debug` shows the traceback",
        1,
    )


def test_debug_shows_the_traceback() -> None:
    plain = hotswap("show", "/nonexistent")
    loud = hotswap("show", "/nonexistent", "--debug")
    assert "Traceback" not in plain.stderr
    assert "Traceback" in loud.stderr
    assert plain.returncode == loud.returncode != 0


def test_sigterm_ends_as_ctrl_c_does(tmp_path: Path) -> None:
    script = (
        "import sys, time, click\n"
        "from hotswap.cli import main as m\n"
        "m.command.main = lambda **_: (print('ready', flush=True), time.sleep(60))\n"
        "sys.exit(m.main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-P", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=20)
    assert child.returncode == 130
    assert said.startswith("hotswap: interrupted")
