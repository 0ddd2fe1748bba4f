"""Time a candidate and its rivals: sprints over pools of input sets, bracketed from outside, interleaved in blocks.

A sprint calls the kernel once on each of some sets and keeps every output, so no call can be left out: after any sprint
the judge may stop the worker and read any output from its memory. Between sprints all sets get new contents behind
their old pointers. The time of a call is the slope between a sprint of N and one of 2N calls.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..timing import ratio_interval
from ..verdict import Arm, Interval, Race
from . import arena
from .bank import Bank, Sample
from .hall import Worker, WorkerError
from .target import misfit

TIMER = "host wall, bracketed from outside; slope of N and 2N calls, median over the sprints of a block"
_CHECK_SHARE = 0.1
_SETTLE_S = 0.004
_MOST_TRIES = 48
_LEAST_US = 1e-3


@dataclass(frozen=True)
class Pool:
    """Input sets of one case in sealed shared memory. sets: how many a worker makes of the `sources` kept here."""

    sample: Sample
    weight: float
    layout: arena.Layout
    memory: arena.Arena
    stride: int
    fixed: tuple[bool, ...]
    scaled: tuple[str | None, ...]
    sources: tuple[list[Tensor], ...]
    sets: int

    @property
    def moved_bytes(self) -> int:
        """Bytes a kernel must at least read and write in one call."""
        read = sum(
            arena.span(t.shape, t.stride()) * t.element_size() if 0 not in t.stride() else 0 for t in self.sample.inputs
        )
        return read + sum(t.reference.numel() * t.reference.element_size() for t in self.sample.targets)


def make_pool(bank: Bank, sample: Sample, weight: float, most_bytes: int) -> Pool:
    """Return the pool of one recorded case: as many sets as fit, at least six, at most 384."""
    is_weight = [s.role == "weight" for s in sample.variant.specs]

    def source() -> list[Tensor]:
        return arena.with_weights(bank.draw(sample.variant, "random"), sample.inputs, is_weight)

    first = source()
    layout, in_bytes = arena.plan(first)
    rows = [row[0] for row in layout["tensors"]]
    storages = layout["storages"]
    fixed = tuple(all(w for w, r in zip(is_weight, rows, strict=True) if r == n) for n in range(len(storages)))
    scaled = tuple(None if f else _scaled(bank, sample, rows, n) for n, f in enumerate(fixed))
    moving = sum(n for (_, n), f in zip(storages, fixed, strict=True) if not f)
    outputs = sum(t.reference.numel() * t.reference.element_size() for t in sample.targets)
    sets = max(6, min(384, most_bytes // max(moving + outputs, 1)) // 3 * 3)
    # Contents come from few sources times a random factor; without anything to scale, from as many as are used.
    count = 4 if any(scaled) else max(4, min(sets, (16 << 20) // max(moving, 1)))
    stride = -(-in_bytes // 4096) * 4096
    memory = arena.Arena.new(stride * count, sealed=True)
    sources = [first, *(source() for _ in range(count - 1))]
    for number, tensors in enumerate(sources):
        arena.write(memory, arena.plan(tensors, number * stride)[0], tensors)
    return Pool(sample, weight, layout, memory, stride, fixed, scaled, tuple(sources), sets)


def _scaled(bank: Bank, sample: Sample, rows: Sequence[int], storage: int) -> str | None:
    users = [i for i, row in enumerate(rows) if row == storage]
    dtypes = {sample.variant.specs[i].dtype for i in users}
    return dtypes.pop() if len(dtypes) == 1 and all(bank.continuous(i) for i in users) else None


@dataclass
class Lane:
    """One arm. strides: of the candidate's outputs, None for a rival, whose outputs are trusted and not looked at."""

    name: str
    worker: Worker
    strides: list[tuple[int, ...]] | None
    call_s: float
    samples: list[float] = field(default_factory=list)
    contents: list[tuple[int, float]] = field(default_factory=list)
    table: arena.Arena | None = None
    checked: int = 0

    def enter(self, pool: Pool) -> None:
        """Have the worker make room for a pool, and run it once untimed."""
        entries = pool.sets * len(pool.sample.targets) * 8
        self.table = arena.Arena.new(entries)
        layout = pool.layout
        self.worker.ask(
            "pool", seconds=60.0, fds=(pool.memory.fd, self.table.fd), bytes=pool.memory.nbytes, table_bytes=entries,
            storages=layout["storages"], tensors=layout["tensors"], fixed=pool.fixed, scaled=pool.scaled,
            sets=pool.sets, stride=pool.stride, outputs=len(pool.sample.targets),
        )  # fmt: skip
        self.samples, self.checked = [], 0
        self.fill(pool, random.Random(0))
        self.sprint(0, pool.sets)

    def fill(self, pool: Pool, source: random.Random) -> None:
        self.contents = [(source.randrange(len(pool.sources)), source.uniform(0.7, 1.4)) for _ in range(pool.sets)]
        self.worker.ask("fill", seconds=60.0, contents=self.contents)

    def sprint(self, first: int, count: int) -> float:
        """Return the seconds that `count` calls took, as seen from here."""
        before = time.perf_counter()
        self.worker.ask("sprint", seconds=self.call_s * max(count, 1), first=first, count=count)
        return time.perf_counter() - before


class TimedOutputError(Exception):
    """An output of a timed call was not what it must be; the message says where."""


def block(
    lane: Lane, pool: Pool, seconds: float, source: random.Random, check: Callable[[Lane, int, int], None]
) -> float:
    """Return microseconds of one call, from sprints that together took at least `seconds`.

    Where the machine is so busy that the slope is not even positive, the block goes on, and in the end counts as
    no time at all.
    """
    third = pool.sets // 3
    slopes: list[float] = []
    spent = 0.0
    while spent < seconds or len(slopes) < 3 or (statistics.median(slopes) <= 0 and len(slopes) < _MOST_TRIES):
        lane.fill(pool, source)
        time.sleep(_SETTLE_S)  # threads that prepared this may still spin
        short = lane.sprint(0, third)
        long = lane.sprint(third, 2 * third)
        if lane.strides is not None and source.random() < (_CHECK_SHARE if lane.checked else 1.0):
            lane.checked += 1
            check(lane, third, 2 * third)
        slopes.append((long - short) / third)
        spent += short + long
    return statistics.median(slopes) * 1e6


def run(lanes: Sequence[Lane], pool: Pool, bank: Bank, *, rounds: int, block_s: float, source: random.Random) -> None:
    """Append `rounds` blocks of each lane to its samples, interleaved, every other round in reverse."""
    check = _checker(bank, pool, source)
    for number in range(rounds):
        for lane in lanes if number % 2 == 0 else reversed(lanes):
            lane.samples.append(max(block(lane, pool, block_s, source, check), _LEAST_US))


def _checker(bank: Bank, pool: Pool, source: random.Random) -> Callable[[Lane, int, int], None]:
    outputs = len(pool.sample.targets)

    def check(lane: Lane, first: int, count: int) -> None:
        """Stop the worker, read all outputs of one random call of the last sprint, let it go on, and compare."""
        assert lane.table is not None
        assert lane.strides is not None
        entry = source.randrange(count)
        lane.worker.stop()
        try:
            pointers = (
                lane.table.bytes_at(0, lane.table.nbytes)
                .view(torch.int64)[entry * outputs : (entry + 1) * outputs]
                .tolist()
            )
            got = [
                _read(lane.worker, pointer, target.reference, stride)
                for pointer, target, stride in zip(pointers, pool.sample.targets, lane.strides, strict=True)
            ]
        except WorkerError as error:
            raise TimedOutputError(str(error)) from error
        finally:
            lane.worker.go_on()
        inputs = contents(pool, *lane.contents[first + entry])
        problem = misfit(got, bank.timed_targets(pool.sample, inputs))
        if problem:
            raise TimedOutputError(f"an output of a timed call is {problem}")

    return check


def _read(worker: Worker, pointer: int, like: Tensor, stride: Sequence[int]) -> Tensor:
    raw = worker.read(pointer, arena.span(like.shape, stride) * like.element_size())
    return arena.as_laid_out(raw, str(like.dtype).removeprefix("torch."), like.shape, stride, 0)


def contents(pool: Pool, which: int, by: float) -> list[Tensor]:
    """Return the inputs a worker made of source set `which` and factor `by`, bit for bit."""
    made: dict[int, Tensor] = {}
    tensors = []
    for tensor, row in zip(pool.sources[which], pool.layout["tensors"], strict=True):
        if row[0] not in made:
            raw = arena.storage_bytes(tensor)
            room = raw.clone()
            if not pool.fixed[row[0]]:
                arena.refill(room, raw, pool.scaled[row[0]], by)
            made[row[0]] = room
        tensors.append(arena.as_laid_out(made[row[0]], *row[1:]))
    return tensors


def as_race(lanes: Sequence[Lane], pool: Pool, subject: str, block_s: float, cache: str) -> Race:
    """Return the record of what the lanes ran. subject: the arm the speed-ups are of."""
    arms = tuple(Arm(x.name, tuple(x.samples), statistics.median(x.samples)) for x in lanes)
    mine = next(x for x in lanes if x.name == subject)
    speedup = {x.name: ratio_interval(x.samples, mine.samples, seed=0) for x in lanes if x is not mine}
    return Race(pool.sample.variant.name, pool.weight, arms, speedup, TIMER, cache, block_s, os.getloadavg()[0])


def weighted_speedup(races: Sequence[Race], subject: str) -> tuple[str, Interval]:
    """Return the best rival over all shapes and the interval of (its weighted time / the subject's)."""

    def rounds(name: str) -> list[float]:
        sides = [(r.weight, next(a.samples_us for a in r.arms if a.name == name)) for r in races]
        return [sum(w * s[i] for w, s in sides) for i in range(min(len(s) for _, s in sides))]

    rivals = sorted((statistics.median(rounds(a.name)), a.name) for a in races[0].arms if a.name != subject)
    best = rivals[0][1]
    return best, ratio_interval(rounds(best), rounds(subject), seed=0)


def cache_state(pool: Pool, cache_bytes: int) -> str:
    """Say in which caches the inputs of a timed call can still be."""
    size = pool.sets * sum(n for (_, n), f in zip(pool.layout["storages"], pool.fixed, strict=True) if not f)
    state = "cold" if cache_bytes and size >= 2 * cache_bytes else "warm in the last-level cache at most"
    return f"{state}: {pool.sets} input sets of together {size >> 20} MiB, last-level cache {cache_bytes >> 20} MiB"
