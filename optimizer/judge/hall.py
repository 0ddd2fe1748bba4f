"""The judge's side of workers: start them from a clean parent, ask, stop, read their memory, and end them."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import wire
from .arena import Arena
from .isolation import TIERS, Confines

logger = logging.getLogger(__name__)

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CXX", "CC")
_STARTED_S = 60.0


class WorkerError(Exception):
    """A worker died, hung, or broke the protocol; the message names it. Caught by the judge, it becomes a verdict."""


class KernelRaisedError(WorkerError):
    """The worker lives and says that the kernel raised."""


class Worker:
    """One forked process with its control socket, its arenas and the scratch folder it may write to."""

    def __init__(self, hall: Hall, tier: int | None, environment: dict[str, str]) -> None:
        self.pid: int | None = None
        self.inbox: Arena | None = None
        self.outbox: Arena | None = None
        self._scratch = Path(tempfile.mkdtemp(prefix="hotswap-worker-"))
        self.user_id = hall.next_id()
        own_id = tier is not None and TIERS[tier].own_id
        if own_id and os.getuid() == 0:
            os.chown(self._scratch, self.user_id, self.user_id)
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._status, status = os.pipe()
        order = {
            "tier": tier, "user_id": self.user_id, "hidden": hall.hidden, "memory_bytes": hall.memory_bytes,
            "scratch": str(self._scratch), "environment": environment,
        }  # fmt: skip
        self._keeper = hall.fork(order, (theirs.fileno(), status))
        theirs.close()
        os.close(status)

    def ready(self) -> None:
        """Wait until the worker has shut itself in; raise WorkerError when it could not."""
        if self.pid is not None:
            return
        self._sock.settimeout(_STARTED_S)
        try:
            # The kernel writes the sender's process id, as this process sees it: the worker cannot name another.
            _, ancillary, _, _ = self._sock.recvmsg(1, socket.CMSG_SPACE(struct.calcsize("3i")), socket.MSG_PEEK)
            answer, _ = wire.receive(self._sock, _STARTED_S)
        except (OSError, wire.GoneError, wire.LateError, wire.GarbledError) as error:
            raise WorkerError(f"the worker did not start: {self._how_it_ended() or type(error).__name__}") from error
        if not answer.get("ok"):
            raise WorkerError(str(answer.get("error"))[:300])
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                self.pid = struct.unpack("3i", content)[0]
        if self.pid is None:
            raise WorkerError("the worker's process id did not come with its first message")
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)

    def ask(self, do: str, *, seconds: float, fds: tuple[int, ...] = (), **order: Any) -> dict[str, Any]:
        """Return the worker's answer; raise KernelRaisedError or, when none can come, WorkerError."""
        self.ready()
        number = secrets.randbits(48)
        try:
            self._sock.settimeout(seconds)
            wire.send(self._sock, {"do": do, "id": number, **order}, fds)
            answer, _ = wire.receive(self._sock, seconds)
        except wire.LateError:
            self.end()
            raise WorkerError(f"no answer within {seconds:g} s, killed") from None
        except wire.GoneError:
            ended = self._how_it_ended() or "closed the control channel"
            self.end()
            raise WorkerError(ended) from None
        except wire.GarbledError as error:
            self.end()
            raise WorkerError(f"wrote to the control channel: {error}") from None
        if answer.get("id") != number:
            self.end()
            raise WorkerError("wrote to the control channel: an answer to no question")
        if answer.get("ok") is not True:
            raise KernelRaisedError(str(answer.get("error"))[:800])
        return answer

    def arenas(self, in_bytes: int, out_bytes: int) -> tuple[Arena, Arena]:
        """Return this worker's shared input and output memory, at least this large."""
        if self.inbox is None or self.outbox is None or self.inbox.nbytes < in_bytes or self.outbox.nbytes < out_bytes:
            self.inbox, self.outbox = Arena.new(in_bytes), Arena.new(out_bytes)
            sizes = {"in_bytes": self.inbox.nbytes, "out_bytes": self.outbox.nbytes}
            self.ask("arena", seconds=10.0, fds=(self.inbox.fd, self.outbox.fd), **sizes)
        return self.inbox, self.outbox

    def stop(self) -> None:
        """Freeze every thread of the worker."""
        if self.pid is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and not _all_stopped(self.pid):
            time.sleep(0.0001)

    def go_on(self) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)

    def read(self, address: int, nbytes: int) -> Tensor:
        """Return bytes of the worker's memory; raise WorkerError where there is none."""
        room = torch.empty(max(nbytes, 1), dtype=torch.uint8)
        try:
            handle = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY)
            try:
                done = os.preadv(handle, [memoryview(room.numpy().data)[:nbytes]], address)
            finally:
                os.close(handle)
        except (OSError, OverflowError) as error:
            raise WorkerError(f"an output of a timed call is not where the call left it ({error})") from error
        if done != nbytes:
            raise WorkerError("an output of a timed call is not wholly in memory")
        return room[:nbytes]

    def others(self) -> int:
        """Return how many processes besides the worker run under its own id; 0 where it shares the caller's."""
        count = 0
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and int(entry.name) != self.pid:
                with suppress(OSError):
                    count += os.stat(entry.path).st_uid == self.user_id  # noqa: PTH116 (a scandir entry)
        return count

    def end(self) -> None:
        """Kill the worker and all it started; safe to call twice."""
        if self.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        if self._keeper:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._keeper, signal.SIGKILL)
            self._keeper = 0
            self._sock.close()
            os.close(self._status)
            for arena in (self.inbox, self.outbox):
                if arena is not None:
                    arena.close()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _how_it_ended(self) -> str | None:
        """Return a phrase for the end of the process, None while it lives."""
        if not self._keeper:
            return "already ended"
        deadline = time.monotonic() + 2.0
        os.set_blocking(self._status, False)
        while time.monotonic() < deadline:
            try:
                told = os.read(self._status, 200).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.005)
                continue
            kind, _, rest = told.partition(" ")
            if kind == "signal":
                return f"killed by {_signal_name(int(rest))}"
            return f"exited with status {rest}" if kind == "exit" else rest or None
        return None


class Hall:
    """The clean parent of all workers of one judge: torch is imported once, no candidate ever runs in it."""

    def __init__(self, *, threads: int, hidden: tuple[str, ...], memory_bytes: int) -> None:
        self.hidden = list(hidden)
        self.memory_bytes = memory_bytes
        self._ids = 2_000_000_000 + secrets.randbelow(100_000_000)
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        environment = {k: os.environ[k] for k in _PASSED_ON if k in os.environ}
        environment |= {
            "OMP_NUM_THREADS": str(threads), "USER": "candidate", "LOGNAME": "candidate", "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1",
            # Many outputs are held at once, then freed: without these the heap would be given back and faulted in again
            # between timed calls, on both sides, which drowns short kernels (16 MiB freed cost 2 ms).
            "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        }  # fmt: skip
        command = [sys.executable, "-m", "hotswap.optimizer.judge.worker", str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(),),
            env=environment,
            stdin=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        theirs.close()
        self.tier = 0
        self._probed = False

    @property
    def isolation(self) -> str:
        """The tier in use, as a verdict names it."""
        return Confines(TIERS[self.tier], 0, (), (), 0).name

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def fork(self, order: dict[str, Any], fds: tuple[int, ...]) -> int:
        """Have the clean parent fork a worker's keeper; return its process id."""
        try:
            wire.send(self._sock, order, fds)
            answer, _ = wire.receive(self._sock, _STARTED_S)
        except (wire.GoneError, wire.LateError, wire.GarbledError) as error:
            raise RuntimeError(
                f"the parent of the judge's workers is gone (exit status {self._process.poll()})"
            ) from error
        return int(answer["pid"])

    def worker(self) -> Worker:
        """Return a fresh worker for a candidate, in the best tier that works here; the first call tries them."""
        while not self._probed:
            worker = Worker(self, self.tier, {})
            try:
                worker.ready()
            except WorkerError as error:
                worker.end()
                logger.info("isolation by %s is not to be had here: %s", TIERS[self.tier].name, error)
                self.tier += 1
                if self.tier == len(TIERS):
                    raise RuntimeError(f"no worker can be started: {error}") from error
            else:
                self._probed = True
                return worker
        return Worker(self, self.tier, {})

    def trusted(self, environment: dict[str, str]) -> Worker:
        """Return a fresh worker for the reference itself: not confined, but of the same form."""
        return Worker(self, None, environment)

    def close(self) -> None:
        self._sock.close()
        self._process.kill()
        self._process.wait()


def _all_stopped(pid: int) -> bool:
    """Whether every thread of a process is stopped, or it is gone."""
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] not in "TtZX":
                return False
    return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
