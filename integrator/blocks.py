"""Time several arms in interleaved blocks, so that drift of the machine falls on all of them alike.

Each round runs every arm once, in a random order; the next round runs them in the reverse order (ABBA). Whatever
is not the arm (warm-up, switching, collection of garbage) happens between blocks.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

Clock = Callable[[], float]

QUIET = 0.05  # successive warm-up calls within 5% of the best of the last few count as quiet
WARM_CALLS = 3


@dataclass(frozen=True)
class Timed:
    """Something to time. before: run ahead of each block, outside the clock, to switch to this arm."""

    call: Callable[[], object]
    before: Callable[[], object] | None = None

    def get_ready(self) -> None:
        if self.before is not None:
            self.before()


@dataclass(frozen=True)
class Blocks:
    """samples_us: microseconds a call, for each block in the order they ran. load: median load average meanwhile."""

    samples_us: dict[str, tuple[float, ...]]
    load: float


@dataclass(frozen=True)
class Pace:
    """How to time.

    warm_s: most seconds of warm-up an arm. finish: waits, inside the clock, for work a call left running (a GPU's).
    """

    rounds: int = 10
    block_s: float = 0.2
    warm_s: float = 2.0
    clock: Clock = time.perf_counter
    finish: Callable[[], object] | None = None
    load: Callable[[], float] = lambda: os.getloadavg()[0]


def interleave(arms: Mapping[str, Timed], pace: Pace, *, seed: int) -> Blocks:
    """Return `pace.rounds` blocks of each arm, `pace.block_s` seconds or longer, in an order drawn from `seed`."""
    calls = {name: _calls_a_block(arm, pace) for name, arm in arms.items()}
    samples: dict[str, list[float]] = {name: [] for name in arms}
    loads: list[float] = []
    for order in _orders(list(arms), pace.rounds, seed):
        for name in order:
            arms[name].get_ready()
            _one(arms[name], pace)  # the first call after a switch pays for cold caches and branches of the other arm
            seconds = _block(arms[name], calls[name], pace)
            samples[name].append(seconds / calls[name] * 1e6)
        loads.append(pace.load())
    return Blocks({name: tuple(taken) for name, taken in samples.items()}, sorted(loads)[len(loads) // 2])


def warm(arm: Timed, pace: Pace) -> float:
    """Call until times stop falling or `pace.warm_s` is spent; return seconds a call, the best of the last few.

    The first call is not counted: it may compile.
    """
    arm.get_ready()
    _one(arm, pace)
    start, recent = pace.clock(), [_one(arm, pace)]
    while pace.clock() - start < pace.warm_s:
        recent.append(_one(arm, pace))
        last = recent[-WARM_CALLS:]
        if len(recent) > WARM_CALLS and max(last) <= (1 + QUIET) * min(recent):
            break
    return min(recent[-WARM_CALLS:])


def _calls_a_block(arm: Timed, pace: Pace) -> int:
    """Return how many calls fill a block, from a whole trial block: a single warm-up call says too little."""
    each = warm(arm, pace)
    trial = max(1, round(pace.block_s / each)) if each > 0 else 1000
    each = min(each, _block(arm, trial, pace) / trial)
    return max(1, -int(-pace.block_s // each)) if each > 0 else trial


def _block(arm: Timed, calls: int, pace: Pace) -> float:
    call, finish = arm.call, pace.finish
    with _no_collection():
        start = pace.clock()
        for _ in range(calls):
            call()
        if finish is not None:
            finish()
        return pace.clock() - start


def _one(arm: Timed, pace: Pace) -> float:
    return _block(arm, 1, pace)


def _orders(names: list[str], rounds: int, seed: int) -> Iterator[list[str]]:
    source = random.Random(seed)
    for number in range(rounds):
        if number % 2 == 0:
            source.shuffle(names)
        yield list(names) if number % 2 == 0 else names[::-1]


@contextmanager
def _no_collection() -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
