"""One arm of a race: its worker, the input sets it is called on, and sprints of calls seen from outside.

A worker stands still except in its own sprints, so that it neither works ahead nor gets in a rival's way; what it uses
of the CPU while it stands still, and by how many threads in its sprints, is read from the kernel's count.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from . import arena
from .crew import each
from .hall import Worker, WorkerError
from .memory import new_arena, settled
from .pool import HARD, Hard, Pool
from .stillness import fall_still, one_thread

_SPOILED = 0xA5
# Above the threads of its arm, as a part of a core, and what a sprint may use before and after its calls.
_MORE_CORES = 0.25
_MORE_CPU_S = 0.001
LEAST_CALLS = 3
NOT_YET = -1
"""What the table of outputs holds for a call that has not returned."""


@dataclass
class Lane:
    """One arm. strides: of the candidate's outputs, None for a rival, whose outputs are trusted and not looked at.

    packed: whether it declared weights static, which are then never changed. sprint_s, check_s: seconds that sprints
    have taken so far, fills included, and checks of their outputs; ran_s, cpu_s: seconds of the timed part alone, and
    of CPU in it; last_s: of the last one; reach: the part of it after which a surprise comes at the latest.
    uncapturable: why its calls could not be replayed from a CUDA graph, empty where they were.
    """

    name: str
    worker: Worker
    strides: list[tuple[int, ...]] | None
    call_s: float
    packed: bool = False
    samples: list[float] = field(default_factory=list)
    contents: list[tuple[int, float]] = field(default_factory=list)
    hard: Hard | None = None
    change: arena.Reweighting | None = None
    uncapturable: str = ""
    sprint_s: float = 0.0
    check_s: float = 0.0
    ran_s: float = 0.0
    cpu_s: float = 0.0
    sprints: int = 0
    last_s: float = 0.0
    reach: float = 1.0
    room: arena.Arena | None = None
    table: arena.Arena | None = None

    @property
    def sprint_most_s(self) -> float:
        """Seconds after which a sprint is given up: it is as long as three calls at most, unless something hangs."""
        return self.call_s * LEAST_CALLS

    def enter(self, pool: Pool) -> None:
        """Have the worker lay out a pool's sets."""
        entries = pool.sets * len(pool.sample.targets) * 8
        self.leave()
        self.room = new_arena(self.worker.device, pool.stride * pool.sets)
        self.table = arena.Arena.new(entries)
        for (at, nbytes), fixed, raw in zip(pool.layout["storages"], pool.fixed, pool.raw(0), strict=True):
            if fixed:
                self.room.bytes_at(at, nbytes).copy_(raw)
        self.worker.ask(
            "pool", seconds=60.0, fds=(self.room.fd, self.table.fd), bytes=self.room.nbytes, table_bytes=entries,
            storages=pool.layout["storages"], tensors=pool.layout["tensors"], fixed=pool.fixed,
            sets=pool.sets, stride=pool.stride,
        )  # fmt: skip
        self.samples, self.hard, self.change = [], None, None

    def leave(self) -> None:
        """Give the memory of the last pool back; let the worker run."""
        for memory in (self.room, self.table):
            if memory is not None:
                memory.close()
        self.room = self.table = None
        with suppress(WorkerError):  # what it did while it was stopped was looked at when the race ended
            self.worker.go_on()

    def sprint(self, pool: Pool, count: int, source: random.Random) -> float:
        """Fill the sets while the worker is stopped; return the seconds of `count` calls on them, seen from here."""
        self.prepare(pool, [drawn(pool, source) for _ in range(count)], None)
        used, before = self.worker.cpu_ns(), time.perf_counter()
        self.worker.go_on()
        answer = self.worker.ask("sprint", seconds=self.sprint_most_s, count=count)
        took = time.perf_counter() - before
        self.worker.stop()
        self.ran_s, self.cpu_s = self.ran_s + took, self.cpu_s + (self.worker.cpu_ns() - used) / 1e9
        self.sprints, self.last_s = self.sprints + 1, took
        self.refuse_company()
        self.uncapturable = str(answer.get("uncapturable") or "")[:200]
        return took

    def prepare(self, pool: Pool, contents: list[tuple[int, float]], hard: Hard | None) -> None:
        """Stop the worker and fill a set with each of these contents; `hard` holds the hard ones, and the weights."""
        self.worker.go_on()
        self.worker.ask("drop", seconds=self.call_s)
        self.worker.stop()
        self.refuse_company()
        self.contents, self.hard = contents, hard
        with one_thread():
            self._reweigh(pool, hard.change if hard else None)
            self.pointers(pool).fill_(NOT_YET)
            self.fill(pool, range(len(contents)))
        settled(self.worker.device)
        if self.worker.device == "cpu":
            fall_still()

    def fill(self, pool: Pool, entries: Iterable[int]) -> None:
        """Write what `contents` says to some of the sets."""
        assert self.room is not None
        raws = [pool.raw(number) for number in range(len(pool.sources))]
        raws += [pool.raw_of(self.hard.inputs)] if self.hard else []  # the last, as HARD counts
        on_cpu, room_of = self.worker.device == "cpu", self.room.bytes_at
        if not on_cpu:
            self.fill_together(pool, raws)

        def fill_one(number: int) -> None:
            which, by = self.contents[number]
            for storage, (at, nbytes) in enumerate(pool.layout["storages"]):
                if not pool.fixed[storage] and (on_cpu or which == HARD):
                    room = room_of(at + number * pool.stride, nbytes)
                    scaled = pool.scaled[storage] if which != HARD else None
                    arena.refill(room, raws[which][storage], scaled, by)

        if on_cpu:
            each(fill_one, entries, self.worker.threads)
        else:
            for number in entries:
                fill_one(number)

    def fill_together(self, pool: Pool, raws: list[list[torch.Tensor]]) -> None:
        """Fill all sets in one launch a storage; those of hard values are filled again."""
        for storage, (at, nbytes) in enumerate(pool.layout["storages"]):
            if not pool.fixed[storage] and nbytes:
                rooms = self._sets(pool, at, nbytes)[: len(self.contents)]
                arena.refill_many(rooms, [raw[storage] for raw in raws], pool.scaled[storage], self.contents)

    def _sets(self, pool: Pool, at: int, nbytes: int) -> torch.Tensor:
        """Return one storage of all sets, a row for each."""
        assert self.room is not None
        whole = self.room.bytes_at(0, self.room.nbytes)
        return whole.as_strided((pool.sets, nbytes), (pool.stride, 1), at)

    def refuse_company(self) -> None:
        """Raise WorkerError where a candidate's process is not alone: another one is not stopped with it."""
        others = self.worker.others() if self.strides is not None else 0
        if others:
            raise WorkerError(f"{others} other process(es) of it run beside a timed call")

    def refuse_threads(self) -> None:
        """Raise WorkerError where a candidate's sprints used more of the CPU than the threads an arm has can use."""
        threads = self.worker.threads
        most = self.ran_s * (threads + _MORE_CORES) + self.sprints * _MORE_CPU_S * threads
        shared = self.strides is not None and self.worker.device == "cpu" and threads < (os.cpu_count() or 1)
        if shared and self.cpu_s > most:
            raise WorkerError(
                f"its calls used {self.cpu_s / max(self.ran_s, 1e-9):.1f} cores; every arm has {threads} thread(s)"
            )

    def spoil(self, pool: Pool) -> None:
        """Overwrite what the last sprint read, so that nothing left undone in it can be done now. Devices only.

        A CPU worker is stopped instead; the outputs of a device are found by asking, while it runs.
        """
        if self.worker.device == "cpu" or any(pool.sample.is_view) or self.room is None:
            return
        for (at, nbytes), fixed in zip(pool.layout["storages"], pool.fixed, strict=True):
            if not fixed:
                self._sets(pool, at, nbytes)[: len(self.contents)].fill_(_SPOILED)
        settled(self.worker.device)

    def pointers(self, pool: Pool) -> torch.Tensor:
        """Return where the worker says that the outputs of the last sprint lie: a row for each call."""
        assert self.table is not None
        calls, outputs = len(self.contents), len(pool.sample.targets)
        return self.table.bytes_at(0, calls * outputs * 8).view(torch.int64).view(calls, outputs)

    def _reweigh(self, pool: Pool, change: arena.Reweighting | None) -> None:
        assert self.room is not None
        if change == self.change:
            return
        for storage, (at, nbytes) in enumerate(pool.layout["storages"]):
            if pool.fixed[storage]:
                room = self.room.bytes_at(at, nbytes)
                arena.reweigh(room, pool.raw(0)[storage], pool.weights[storage], change)
        self.change = change


def drawn(pool: Pool, source: random.Random) -> tuple[int, float]:
    """Return contents for one set: a source and the factor its values take."""
    return source.randrange(len(pool.sources)), source.uniform(0.7, 1.4)
