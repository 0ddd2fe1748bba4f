"""The judge's handle on one worker: ask it, stop it, read its memory from outside, and end it with all it started."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from . import wire
from .arena import Arena
from .isolation import Tier, kill_below, started_by
from .memory import DeviceMemoryError, Foreign, Segment, new_arena

STARTED_S = 60.0
"""Seconds a process of ours may take to start on a busy machine."""
_STOPPED_S = 5.0
# A thread is told to be stopped a moment before it leaves its core; looks at its clock until it stands still, at most.
_STILL_NS = 100_000
_MOST_LOOKS = 20


class WorkerError(Exception):
    """A worker died, hung, or broke the protocol; the message names it. Caught by the judge, it becomes a verdict."""


class KernelRaisedError(WorkerError):
    """The worker lives and says that the kernel raised."""


class Parent(Protocol):
    """What forks workers: `hall.Hall`."""

    memory_bytes: int
    device: str
    threads: int

    def next_id(self) -> int: ...
    def fork(self, order: dict[str, Any], fds: tuple[int, ...]) -> int: ...


class Worker:
    """One forked process with its control socket, its arenas and the scratch folder it may write to."""

    def __init__(
        self, hall: Parent, tier: Tier | None, environment: dict[str, str], hidden: tuple[str, ...] = ()
    ) -> None:
        self.environment = environment
        self.device = hall.device
        self.threads = hall.threads
        self._foreign = Foreign()
        self._stopped_ns: int | None = None
        self.pid: int | None = None
        self.inbox: Arena | None = None
        self.outbox: Arena | None = None
        self._scratch = Path(tempfile.mkdtemp(prefix="hotswap-worker-"))
        self.user_id = hall.next_id()
        if tier is not None and tier.own_id and os.getuid() == 0:
            os.chown(self._scratch, self.user_id, self.user_id)
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._status, status = os.pipe()
        order = {
            "tier": asdict(tier) if tier else None, "user_id": self.user_id, "hidden": list(hidden),
            "memory_bytes": hall.memory_bytes, "scratch": str(self._scratch), "environment": environment,
            "device": hall.device,
        }  # fmt: skip
        self._keeper = 0
        self._ending = threading.Lock()
        try:
            self._keeper = hall.fork(order, (theirs.fileno(), status))
        except BaseException:
            self._let_go()
            raise
        finally:
            theirs.close()
            os.close(status)

    def ready(self) -> None:
        """Wait until the worker has shut itself in; raise WorkerError when it could not."""
        if self.pid is not None:
            return
        self._sock.settimeout(STARTED_S)
        try:
            # The kernel writes the sender's process id, as this process sees it: the worker cannot name another.
            _, ancillary, _, _ = self._sock.recvmsg(1, socket.CMSG_SPACE(struct.calcsize("3i")), socket.MSG_PEEK)
            answer, _ = wire.receive(self._sock, STARTED_S)
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
        return self.answer(self.order(do, seconds=seconds, fds=fds, **order), seconds)

    def order(self, do: str, *, seconds: float, fds: tuple[int, ...] = (), **order: Any) -> int:
        """Send an order without waiting; return the number that its answer must bear."""
        self.ready()
        number = secrets.randbits(48)
        with self._ending_on_failure(seconds):
            self._sock.settimeout(seconds)
            wire.send(self._sock, {"do": do, "id": number, **order}, fds)
        return number

    def answer(self, number: int, seconds: float) -> dict[str, Any]:
        """Return the answer to the order of this number; raise as `ask` does."""
        with self._ending_on_failure(seconds):
            answer, _ = wire.receive(self._sock, seconds)
        if not answers(answer, number):
            self.end()
            raise WorkerError("wrote to the control channel: an answer to no question")
        if answer.get("ok") is not True:
            raise KernelRaisedError(_printable(str(answer.get("error"))[:800]))
        return answer

    @contextmanager
    def _ending_on_failure(self, seconds: float) -> Iterator[None]:
        try:
            yield
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

    def arenas(self, in_bytes: int, out_bytes: int) -> tuple[Arena, Arena]:
        """Return this worker's shared input and output memory, at least this large."""
        if self.inbox is None or self.outbox is None or self.inbox.nbytes < in_bytes or self.outbox.nbytes < out_bytes:
            self._forget_arenas()
            self.inbox, self.outbox = new_arena(self.device, in_bytes), new_arena(self.device, out_bytes)
            sizes = {"in_bytes": self.inbox.nbytes, "out_bytes": self.outbox.nbytes}
            self.ask("arena", seconds=10.0, fds=(self.inbox.fd, self.outbox.fd), **sizes)
        return self.inbox, self.outbox

    def stop(self) -> None:
        """Freeze every thread of the worker, if it is not; raise WorkerError where one goes on."""
        if self.pid is None or self._stopped_ns is not None:
            return
        deadline = time.monotonic() + _STOPPED_S
        while True:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGSTOP)  # again and again: it may have a timer that wakes it
            if _all_stopped(self.pid):
                break
            if time.monotonic() > deadline:
                raise WorkerError("a thread of it cannot be stopped")
            time.sleep(0.0001)
        self._stopped_ns = self._still_ns()

    def _still_ns(self) -> int:
        """Return `cpu_ns` once it stands still, or after a few looks.

        A host may take a core away from a thread that is told to be stopped and has not left it yet.
        """
        used = self.cpu_ns()
        for _ in range(_MOST_LOOKS):
            time.sleep(0.0001)
            before, used = used, self.cpu_ns()
            if used == before:
                break
        return used

    def go_on(self) -> None:
        """Let a stopped worker run; raise WorkerError where it ran meanwhile, woken by a timer of its own say."""
        if self.pid is None or self._stopped_ns is None:
            return
        ran_ns, self._stopped_ns = self.cpu_ns() - self._stopped_ns, None
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        if ran_ns > _STILL_NS:
            raise WorkerError(f"ran for {ran_ns / 1e3:.0f} us while it was stopped")

    def cpu_ns(self) -> int:
        """Return what all threads of the worker have used of the CPU so far, by the kernel; 0 once it ended."""
        try:
            # The clock of another process: its id, inverted, above three bits that ask for the scheduler's count.
            return time.clock_gettime_ns((~(self.pid or 0) << 3) | 2)
        except OSError:
            return 0

    def read(self, address: int, nbytes: int) -> Tensor:
        """Return bytes of the worker's memory on its device; raise WorkerError where there is none."""
        if self.device != "cpu":
            try:
                return self._foreign.read(address, nbytes)
            except DeviceMemoryError as error:
                raise WorkerError(f"an output of a timed call is not where the call left it ({error})") from error
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

    def locate_outputs(self) -> None:
        """Learn where the last sprint's outputs lie on the device, before its memory is read; nothing on a CPU."""
        if self.device == "cpu":
            return
        self.go_on()
        rows = self.ask("segments", seconds=20.0).get("segments")
        try:
            self._foreign.learn([Segment(int(r["base"]), int(r["nbytes"]), str(r["handle"])) for r in rows or ()])
        except (DeviceMemoryError, TypeError, KeyError, ValueError, OverflowError) as error:
            raise WorkerError(f"the memory of its outputs cannot be opened ({error})") from error

    def others(self) -> int:
        """Return how many processes the worker has started, or left behind, that still run."""
        # Below the keeper stand the first process of the namespaces, the worker, and what the worker started.
        keeper = self._keeper
        return max(len(started_by(keeper)) - 2, 0) if keeper else 0

    def end(self) -> None:
        """Kill the worker and all it started; safe to call twice, from two threads too."""
        with self._ending:
            keeper, self._keeper = self._keeper, 0
        if not keeper:
            return
        if self.pid is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        # Without a pid namespace nothing else ends what was started in a session of its own.
        kill_below(keeper)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(keeper, signal.SIGKILL)
        self._let_go()

    def _let_go(self) -> None:
        self._sock.close()
        os.close(self._status)
        self._forget_arenas()
        with suppress(DeviceMemoryError):  # the memory went with the process
            self._foreign.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _forget_arenas(self) -> None:
        for arena in (self.inbox, self.outbox):
            if arena is not None:
                arena.close()
        self.inbox = self.outbox = None

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


def answers(answer: dict[str, Any], number: int) -> bool:
    """Whether an answer is to the order of this number, which nobody knew before it was sent."""
    return answer.get("id") == number


def _printable(text: str) -> str:
    """Return a candidate's words without what a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


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
