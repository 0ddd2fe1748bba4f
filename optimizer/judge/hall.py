"""The hall: the clean parent from which every worker is forked, with spares warmed ahead. Judges of a run share one."""

from __future__ import annotations

import itertools
import logging
import os
import resource
import secrets
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch

from . import wire
from .handle import STARTED_S
from .handle import KernelRaisedError as KernelRaisedError
from .handle import Worker as Worker
from .handle import WorkerError as WorkerError
from .isolation import TIERS, Tier
from .probe import probe

logger = logging.getLogger(__name__)

_PASSED_ON = (
    "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CXX", "CC", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "PYTHONPATH",
    "TRITON_INTERPRET",
)  # fmt: skip


class HallGoneError(RuntimeError):
    """No worker can be started any more: the parent of all workers is gone, or no tier works here."""


class Hall:
    """The clean parent of workers: torch is imported once, no candidate ever runs in it. Judges of a run share one.

    It starts in the background; the first worker waits until it is up and has found the best tier that works here.
    threads: of every worker, None for torch's own number here. device: "cpu" or "cuda", of all tasks judged with these
    workers. memory_bytes: most a worker may map, None for half of this machine's (no limit on a device: CUDA reserves
    address space for all memory there is). tiers: tried in this order. spares: workers kept ready, each used once.
    """

    def __init__(
        self,
        *,
        threads: int | None = None,
        device: str = "cpu",
        memory_bytes: int | None = None,
        tiers: Sequence[Tier] = TIERS,
        spares: int = 1,
    ) -> None:
        self.threads = threads or torch.get_num_threads()
        self.device = device
        half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        self.memory_bytes = memory_bytes or (half if device == "cpu" else resource.RLIM_INFINITY)
        self.tier = tiers[0]
        self.refused: list[str] = []
        self._tiers = tiers
        self._wanted_spares = spares
        self._spares: deque[Worker] = deque()
        self._idle: dict[tuple[tuple[str, str], ...], list[Worker]] = {}
        self._hidden: list[str] = []
        self._failed: str | None = None
        self._lock = threading.RLock()
        # Apart from the other: whoever asks for a worker before the parent is up must not keep the rest waiting.
        self._asking = threading.Lock()
        self._ids = itertools.count(2_000_000_001 + secrets.randbelow(100_000_000))
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hotswap.optimizer.judge.worker", str(theirs.fileno()), *_compiled_for(device)],
            pass_fds=(theirs.fileno(),),
            env=_environment(self.threads),
            stdin=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        theirs.close()
        self._probing = threading.Thread(target=self._probe, daemon=True)
        self._probing.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def isolation(self) -> str:
        """The tier in use, as a verdict names it, and the better ones that this machine refused."""
        self._probing.join()
        return self.tier.description + "".join(f"; not to be had here: {why}" for why in self.refused)

    def hide(self, *folders: str) -> None:
        """Let no worker handed out from now on see these folders, where the tier can hide any."""
        with self._lock:
            new = [f for f in folders if f not in self._hidden]
            self._hidden += new
            while new and self._spares:
                self._spares.pop().end()

    def next_id(self) -> int:
        return next(self._ids)

    def fork(self, order: dict[str, Any], fds: tuple[int, ...]) -> int:
        """Have the clean parent fork a worker's keeper; return its process id."""
        with self._asking:
            try:
                wire.send(self._sock, order, fds)
                answer, _ = wire.receive(self._sock, STARTED_S)
            except (wire.GoneError, wire.LateError, wire.GarbledError) as error:
                raise HallGoneError(
                    f"the parent of the judge's workers is gone (exit status {self._process.poll()})"
                ) from error
        return int(answer["pid"])

    def worker(self) -> Worker:
        """Return a fresh worker for a candidate, in the best tier that works here, from the spares if there is one."""
        self._probing.join()
        if self._failed is not None:
            raise HallGoneError(self._failed)
        with self._lock:
            worker = self._spares.popleft() if self._spares else self._confined(self.tier)
            while len(self._spares) < self._wanted_spares:
                self._spares.append(self._confined(self.tier))
        return worker

    def trusted(self, environment: dict[str, str]) -> Worker:
        """Return a worker for a reference: not confined, but of the same form. One given back before is used again."""
        with self._lock:
            idle = self._idle.get(tuple(sorted(environment.items())))
            given = idle.pop() if idle else None
        return given or Worker(self, None, environment)

    def give_back(self, worker: Worker) -> None:
        """Take a trusted worker that still answers, so that the next task's rival need not warm up the compiler."""
        with self._lock:
            self._idle.setdefault(tuple(sorted(worker.environment.items())), []).append(worker)

    def close(self) -> None:
        """End every worker kept here, and the parent of all."""
        self._process.kill()
        self._process.wait()
        self._probing.join()  # a thread still starting a worker sees its parent gone
        with self._lock:
            for worker in [*self._spares, *(w for idle in self._idle.values() for w in idle)]:
                worker.end()
            self._spares.clear()
            self._idle.clear()
        self._sock.close()

    def _confined(self, tier: Tier) -> Worker:
        return Worker(self, tier, {}, hidden=tuple(self._hidden))

    def use(self, tier: Tier) -> None:
        """Hand out workers of this tier from now on; raise WorkerError where a known candidate fails in it."""
        worker = self._confined(tier)
        try:
            probe(worker, tier)
        finally:
            worker.end()
        with self._lock:
            self.tier = tier
            while self._spares:
                self._spares.pop().end()

    def _probe(self) -> None:
        """Settle on the first tier in which a known candidate works and finds no way out."""
        for tier in self._tiers:
            try:
                self.use(tier)
            except WorkerError as error:
                logger.info("isolation by %s is not to be had here: %s", tier.description, error)
                self.refused.append(f"{tier.description} ({error})")
            except HallGoneError as error:
                self._failed = str(error)
                return
            else:
                return
        self._failed = f"no worker can be started: {'; '.join(self.refused)}"


def _compiled_for(device: str) -> list[str]:
    """Return the compute capability that workers compile for, nothing for a CPU."""
    if device == "cpu" or torch.version.hip is not None or os.environ.get("TRITON_INTERPRET") == "1":
        return []
    major, minor = torch.cuda.get_device_capability()
    return [str(10 * major + minor)]


def _environment(threads: int) -> dict[str, str]:
    """Return what a worker may know of its surroundings: an allow-list, and what makes all arms alike."""
    return {k: os.environ[k] for k in _PASSED_ON if k in os.environ} | {
        "OMP_NUM_THREADS": str(threads), "USER": "candidate", "LOGNAME": "candidate", "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # Many outputs are held at once, then freed: without these the heap would be given back and faulted in again
        # between timed calls, on both sides, which drowns short kernels (16 MiB freed cost 2 ms).
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    }  # fmt: skip
