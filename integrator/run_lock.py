"""One writer to a run directory: a lock that names its owner and is taken over when the owner is dead."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..models.errors import RecordLocked, ResourceExhausted

NAME = ".lock"


def acquire(folder: Path) -> None:
    """Make this process the owner of `folder`; raise RecordLocked where a live process is, itself included."""
    with _locked_file(folder) as file:
        owner = _owner(file.read())
        if owner and _alive(owner):
            who = "this process" if owner == _identity() else f"process {owner['pid']} on {owner['host']}"
            raise RecordLocked(
                f"{folder}: in use by {who}; wait for it or stop it"
                + ("" if owner["host"] == socket.gethostname() else f", or remove {folder / NAME} if it is dead")
            )
        _write(file, json.dumps(_identity()))


def release(folder: Path) -> None:
    """Give `folder` up; nothing happens where this process is not its owner."""
    if folder.exists():
        with _locked_file(folder) as file:
            if _owner(file.read()) == _identity():
                _write(file, "")


def holder(folder: Path) -> int | None:
    """Return the process that is writing to `folder`, None where there is none alive."""
    try:
        owner = _owner((folder / NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return int(owner["pid"]) if owner and _alive(owner) else None


@contextmanager
def _locked_file(folder: Path) -> Iterator[Any]:
    # The kernel's lock is held for the blink of reading and writing the owner. It cannot be the lock itself: forked
    # workers inherit it and would keep a killed run locked.
    try:
        with (folder / NAME).open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            yield file
    except OSError as error:
        raise ResourceExhausted(
            f"{folder / NAME}: cannot be written ({error.strerror}); free space or choose another --out"
        ) from error


def _write(file: Any, text: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()


def _identity() -> dict[str, str]:
    pid = os.getpid()
    return {"pid": str(pid), "host": socket.gethostname(), "born": _born(pid)}


def _owner(text: str) -> dict[str, str] | None:
    """Return the owner written in a lock file; None for an empty one or half a line from a crash."""
    try:
        owner = json.loads(text)
    except ValueError:
        return None
    return owner if isinstance(owner, dict) and set(owner) == {"pid", "host", "born"} else None


def _alive(owner: dict[str, str]) -> bool:
    if owner["host"] != socket.gethostname():
        return True  # cannot be asked from here
    try:
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _born(int(owner["pid"])) == owner["born"]


def _born(pid: int) -> str:
    """Return when a process began, in the kernel's units, "" if unknown: numbers of the dead are given again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]
