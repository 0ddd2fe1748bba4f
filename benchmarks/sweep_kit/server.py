"""Fork a child for each model from a process that has torch and transformers loaded; bound its time and its memory."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .reached import keep_in, last
from .row import Row

_LOOK_EVERY_S = 0.1
_OUTPUT_KEPT = 1500


@dataclass(frozen=True)
class Bounds:
    """seconds: CPU time a model may take, and how long it may go without any. bytes: resident memory.

    The wall's time is not bounded: on a busy machine it says nothing of the model. jobs: models at once.
    """

    seconds: float = 60.0
    bytes: int = 4 << 30
    jobs: int = 1


@dataclass
class _Child:
    name: str
    pid: int
    folder: Path
    started: float
    moved: float
    most_bytes: int = 0
    cpu_seconds: float = 0.0


def run_each(names: Iterable[str], work: Callable[[str], Row], bounds: Bounds) -> Iterator[Row]:
    """Yield a row for each of `names`, in order of completion; `work` runs in a child forked for it.

    A child that ends without a row, in time or not, has failed, and its row says how, and at which stage.
    """
    waiting, running = list(names), list[_Child]()
    with tempfile.TemporaryDirectory(prefix="hotswap-sweep-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < bounds.jobs:
                    running.append(_start(waiting.pop(0), work, Path(folder)))
                time.sleep(_LOOK_EVERY_S)
                for child in list(running):
                    row = _look(child, bounds)
                    if row is not None:
                        running.remove(child)
                        yield row
        finally:
            for child in running:
                _end(child)


def _start(name: str, work: Callable[[str], Row], parent: Path) -> _Child:
    folder = Path(tempfile.mkdtemp(dir=parent))
    started = time.monotonic()
    pid = os.fork()
    if pid:
        return _Child(name, pid, folder, started, moved=started)
    code = 1
    try:
        os.setsid()  # its own children, compilers say, end with it
        out = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        keep_in(folder / "stage")
        row = work(name)
        (folder / "row.json").write_text(json.dumps(row.to_dict(), default=str), encoding="utf-8")
        code = 0
    finally:
        os._exit(code)


def _look(child: _Child, bounds: Bounds) -> Row | None:
    """Return the child's row where it has ended or had to be ended, None while it runs within its bounds."""
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    spent = time.monotonic() - child.started
    if pid:
        return _row(child, status, spent)
    child.most_bytes = max(child.most_bytes, _resident_bytes(child.pid))
    if child.most_bytes > bounds.bytes:
        _end(child)
        return _failed(child, f"memory: {child.most_bytes / 2**30:.1f} GiB, allowed {bounds.bytes / 2**30:.1f}", spent)
    used, now = _cpu_seconds(child.pid), time.monotonic()
    if used > child.cpu_seconds:
        child.cpu_seconds, child.moved = used, now
    if used > bounds.seconds or now - child.moved > bounds.seconds:
        _end(child)
        passed = "of CPU time" if used > bounds.seconds else "without using the CPU"
        return _failed(child, f"time: not done after {bounds.seconds:.0f} s {passed}", spent)
    return None


def _row(child: _Child, status: int, spent: float) -> Row:
    path = child.folder / "row.json"
    if not path.exists():
        ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
        return _failed(child, f"crash: its process ended with {ended}", spent)
    row = Row(**json.loads(path.read_text(encoding="utf-8")))
    row.seconds["all"] = round(spent, 1)
    row.seconds["cpu"] = round(child.cpu_seconds, 1)
    row.facts["peak_mib"] = child.most_bytes >> 20
    return row


def _failed(child: _Child, why: str, spent: float) -> Row:
    text = (child.folder / "output").read_text(encoding="utf-8", errors="replace")[-_OUTPUT_KEPT:]
    return Row(child.name, "failed", last(child.folder / "stage"), why, {"all": round(spent, 1)}, {"output": text})


def _end(child: _Child) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended before it had a group of its own, or just now
        os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)


def _cpu_seconds(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return 0.0
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
