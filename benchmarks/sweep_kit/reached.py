"""Keep which stage a trial is at in a file: that is what a child leaves that had to be ended."""

from __future__ import annotations

from pathlib import Path

_kept_in: list[Path] = []


def keep_in(path: Path) -> None:
    """From now on, keep the stage in `path`."""
    _kept_in[:] = [path]


def reached(stage: str) -> None:
    """Note that `stage` begins; in a process that keeps no file, do nothing."""
    for path in _kept_in:
        path.write_text(stage, encoding="utf-8")


def last(path: Path) -> str:
    """Return the stage in `path`, "process" where none was reached."""
    return path.read_text(encoding="utf-8") if path.exists() else "process"
