"""What the commands say while they work, where there is no terminal to draw bars on."""

from __future__ import annotations

import pytest

from hotswap.cli.console import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("hotswap.cli.console.time.monotonic", lambda: now[0])
    return now


def test_work_is_said_when_it_starts_now_and_then_and_when_it_ends(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress() as bars:
        for second in range(0, 21, 2):
            clock[0] = 100.0 + second
            bars("gelu", second, 20, note=f"{second} tried")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "gelu: begun (0 tried)",
        "gelu: 30%, 14 s left (6 tried)",
        "gelu: 60%, 8 s left (12 tried)",
        "gelu: 90%, 2 s left (18 tried)",
        "gelu: done in 20.0 s (20 tried)",
    ]


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(quiet=True) as bars:
        bars("gelu", 0, 1)
        bars("gelu", 1, 1)
    assert capsys.readouterr() == ("", "")
