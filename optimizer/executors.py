"""Where candidates are judged: in this process, in one process a device, or elsewhere; the answers are futures.

A task stays with the slot it was opened on, so that its times are of one device. Whoever asks writes the ledger, alone.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ..models.errors import EnvironmentMissing, HotswapError
from ..models.settings import variable
from .court import Court, Pace
from .verdict import Race, Verdict

T = TypeVar("T")
Tried = list[list[tuple[int, ...]]]


class Executor(Protocol):
    """Judges on `slots` devices at once; a slot is a number from 0, and does one thing at a time.

    A future raises what the judge raised (InputError for a task that proves nothing), ExecutorLost where it has died.
    """

    @property
    def slots(self) -> int: ...
    def open(self, slot: int, folder: Path, pace: Pace) -> Future[Tried]: ...
    def baseline(self, slot: int, folder: Path) -> Future[Race]: ...
    def verdict(self, slot: int, folder: Path, source: str) -> Future[Verdict]: ...
    def leave(self, slot: int, folder: Path) -> None: ...
    def close(self) -> None: ...


class ExecutorLost(EnvironmentMissing):
    """The process that judged has died; what it judged is not decided."""


class _ByCourt:
    """What all executors share: questions to a court, and its plain answers turned to records.

    lost: what a future raises when the process that judged has died.
    """

    lost: tuple[type[BaseException], ...] = (BrokenProcessPool,)

    def _ask(self, slot: int, method: str, *values: Any) -> Future[Any]:
        raise NotImplementedError

    def open(self, slot: int, folder: Path, pace: Pace) -> Future[Tried]:
        asked = self._ask(slot, "open", str(folder), pace)
        return self._then(asked, lambda plain: [[tuple(shape) for shape in shapes] for shapes in plain["tried"]])

    def baseline(self, slot: int, folder: Path) -> Future[Race]:
        asked = self._ask(slot, "baseline", str(folder))
        return self._then(asked, lambda plain: Race.from_dict(plain, f"{folder}: baseline"))

    def verdict(self, slot: int, folder: Path, source: str) -> Future[Verdict]:
        asked = self._ask(slot, "verdict", str(folder), source)
        return self._then(asked, lambda plain: Verdict.from_dict(plain, f"{folder}: verdict"))

    def leave(self, slot: int, folder: Path) -> None:
        self._ask(slot, "leave", str(folder))

    def _then(self, asked: Future[Any], read: Callable[[Any], T]) -> Future[T]:
        """Return a future of what `read` makes of the answer."""
        answer: Future[T] = Future()

        def finished(done: Future[Any]) -> None:
            error = done.exception()
            if isinstance(error, self.lost):
                error = ExecutorLost("the process that judged has died; `hotswap resume` goes on from the ledger")
            if error is not None:
                answer.set_exception(error)
                return
            try:
                answer.set_result(read(done.result()))
            except HotswapError as problem:  # a record of another version
                answer.set_exception(problem)

        asked.add_done_callback(finished)
        return answer


class Inline(_ByCourt):
    """Judges in this process, while the caller waits: one slot, nothing beside it that could disturb its clock."""

    slots = 1

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads
        self._court: Court | None = None

    def close(self) -> None:
        if self._court is not None:
            self._court.close()

    def _ask(self, slot: int, method: str, *values: Any) -> Future[Any]:
        if self._court is None:  # starting workers takes seconds: not before somebody asks
            self._court = Court(self._threads)
        answer: Future[Any] = Future()
        try:
            answer.set_result(getattr(self._court, method)(*values))
        except HotswapError as error:
            answer.set_exception(error)
        return answer


class Processes(_ByCourt):
    """Judges in one process for each of `devices`, the values of CUDA_VISIBLE_DEVICES; None leaves it as it is."""

    def __init__(self, devices: Sequence[str | None], threads: int | None = None) -> None:
        context = multiprocessing.get_context("spawn")  # a forked child of a process with CUDA or threads is broken
        self._pools = [ProcessPoolExecutor(1, context, _begin, (device, threads)) for device in devices]
        self.slots = len(self._pools)

    def close(self) -> None:
        for pool in self._pools:
            with suppress(BrokenProcessPool):  # it died before, and its workers die with it
                pool.submit(_end)
        for pool in self._pools:
            pool.shutdown(cancel_futures=False)

    def _ask(self, slot: int, method: str, *values: Any) -> Future[Any]:
        return self._pools[slot].submit(_serve, method, *values)


_court: Court | None = None


def _begin(device: str | None, threads: int | None) -> None:
    """Make this process a court of one device. Runs before torch is imported here, which reads the variable once."""
    global _court
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    _court = Court(threads)


def _serve(method: str, *values: Any) -> Any:
    assert _court is not None
    return getattr(_court, method)(*values)


def _end() -> None:
    if _court is not None:
        _court.close()


def devices(count: int) -> list[str]:
    """Return the CUDA_VISIBLE_DEVICES of `count` processes, one GPU each; raise EnvironmentMissing for too many."""
    import torch

    seen = variable("CUDA_VISIBLE_DEVICES")
    known = seen.split(",") if seen else [str(n) for n in range(torch.cuda.device_count())]
    if len(known) < count:
        raise EnvironmentMissing(f"--gpus {count}: {len(known)} are visible here; give at most {max(len(known), 1)}")
    return known[:count]
