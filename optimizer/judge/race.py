"""Time a candidate and its rivals: sprints over pools of input sets, bracketed from outside, interleaved in blocks.

A sprint calls the kernel once on each input set and keeps every output. Before it the judge fills the sets with new
contents behind their old pointers while the worker is stopped, so nothing can be computed ahead; after it the worker is
stopped again and any output may be read from its memory, so nothing can be left out or put off. What an empty sprint
takes in a trusted worker is taken off. (A slope between sprints of two lengths would do the same, but a candidate that
idles in the short ones makes it as flat as it likes.)
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..timing import ratio_interval, weighted_rounds
from ..verdict import Arm, Interval, Race
from .bank import Bank
from .lane import LEAST_CALLS, Lane
from .pool import Pool
from .surprise import surprise
from .timed_outputs import check_sprint

TIMER = "host wall from outside; sprint less an empty sprint, over its calls; lower quartile of a block's sprints"
DEVICE_TIMER = f"a CUDA graph of all calls of a sprint, replayed: {TIMER}"
# Outputs of so many sprints are looked at: a kernel that skips work in enough sprints to move the quartile is caught.
_CHECK_SHARE = 0.25
_LEAST_CHECK_S = 1.0
_EMPTY_SPRINTS = 5
_WARM_SPRINTS = 6
_LEAST_SPRINTS = 6
# Another guest of the host slows a sprint by 2 to 5 times, in bursts of seconds, and nothing makes one faster: on a
# machine where the median of two identical kernels differed by 2x, their lower quartiles differed by 5%.
_QUARTILE = 0.25
# So many times slower than a rival, and by so much, no noise makes a kernel: 384 calls of 10 ms would cost a minute.
_HOPELESS = 4.0
_LEAST_LOSS_S = 300e-6
_LEAST_US = 1e-3


@dataclass(frozen=True)
class Sprints:
    """How a pool is run: calls a sprint, seconds an empty sprint takes, least seconds of a block."""

    pool: Pool
    calls: int
    empty_s: float
    block_s: float


def pace(trusted: Lane, pool: Pool, block_s: float, source: random.Random) -> Sprints:
    """Return sprints of which a block holds about six, paced by a trusted lane; slow kernels use fewer sets."""
    empty_s = _quiet([trusted.sprint(pool, 0, source) for _ in range(_EMPTY_SPRINTS)])
    # On a device a launch takes longer than three short kernels.
    few = LEAST_CALLS if trusted.worker.device == "cpu" else pool.sets
    trusted.sprint(pool, few, source)
    call_s = max(trusted.sprint(pool, few, source) - empty_s, 1e-6) / few
    return Sprints(pool, min(pool.sets, max(LEAST_CALLS, int(block_s / _LEAST_SPRINTS / call_s))), empty_s, block_s)


def block(lane: Lane, sprints: Sprints, source: random.Random, check: Callable[[Lane], None]) -> float:
    """Return microseconds of one call, from sprints that together took at least a block's seconds."""
    times: list[float] = []
    while sum(times) < sprints.block_s or len(times) < _LEAST_SPRINTS:
        before = time.perf_counter()
        times.append(lane.sprint(sprints.pool, sprints.calls, source))
        lane.sprint_s += time.perf_counter() - before
        # A large output takes the oracle longer than the kernel: checks get no more time than what they check. The
        # worker is stopped meanwhile and cannot tell.
        afford = lane.check_s <= max(lane.sprint_s, _LEAST_CHECK_S)
        if lane.strides is not None and afford and (len(times) == 1 or source.random() < _CHECK_SHARE):
            before = time.perf_counter()
            check(lane)
            lane.check_s += time.perf_counter() - before
    return max((_quiet(times) - sprints.empty_s) / sprints.calls * 1e6, _LEAST_US)


def _quiet(times: Sequence[float]) -> float:
    """Return the lower quartile."""
    return sorted(times)[int(_QUARTILE * len(times))]


def is_hopeless(lane: Lane, trusted: Lane, sprints: Sprints, source: random.Random) -> bool:
    """Whether a few calls show a candidate to be so much slower than a rival that more of them would show nothing."""

    def call_s(side: Lane) -> float:
        return min(side.sprint(sprints.pool, LEAST_CALLS, source) - sprints.empty_s for _ in range(2)) / LEAST_CALLS

    call_s(lane)
    mine, theirs = call_s(lane), max(call_s(trusted), 0.0)
    return mine > _HOPELESS * theirs and (mine - theirs) * LEAST_CALLS > 2 * sprints.empty_s + _LEAST_LOSS_S


def run(
    lanes: Sequence[Lane],
    pool: Pool,
    bank: Bank,
    *,
    rounds: int,
    block_s: float,
    source: random.Random,
    cut_short: bool = False,
) -> bool:
    """Append `rounds` blocks of each lane to its samples, interleaved, every other round in reverse.

    cut_short: give a candidate that is clearly slower the fewest calls; returns whether that was so.
    """  # fmt: skip

    def check(lane: Lane) -> None:
        check_sprint(lane, pool, bank, source)

    for lane in lanes:
        lane.worker.stop()
    trusted = next(lane for lane in lanes if lane.strides is None)
    sprints = pace(trusted, pool, block_s, source)
    candidates = [lane for lane in lanes if lane.strides is not None] if trusted.worker.device == "cpu" else []
    hopeless = cut_short and any(is_hopeless(lane, trusted, sprints, source) for lane in candidates)
    if hopeless:
        sprints = replace(sprints, calls=LEAST_CALLS, block_s=0.0)
    for lane in lanes:
        for _ in range(1 if hopeless else _WARM_SPRINTS):
            lane.sprint(pool, sprints.calls, source)
    for number in range(rounds):
        for lane in lanes if number % 2 == 0 else reversed(lanes):
            lane.samples.append(block(lane, sprints, source, check))
            if lane.strides is not None and not hopeless:
                surprise(lane, pool, bank, sprints.calls, source)
    for lane in lanes:
        if lane.strides is not None:
            lane.sprint(pool, sprints.calls, source)
            check(lane)  # the very last calls: a kernel may change its mind after any number
        lane.worker.go_on()
        lane.refuse_threads()
    return hopeless


def as_race(lanes: Sequence[Lane], pool: Pool, subject: str, block_s: float, cache: str) -> Race:
    """Return the record of what the lanes ran. subject: the arm the speed-ups are of."""
    arms = tuple(Arm(x.name, tuple(x.samples), statistics.median(x.samples)) for x in lanes)
    mine = next(x for x in lanes if x.name == subject)
    speedup = {x.name: ratio_interval(x.samples, mine.samples, seed=0) for x in lanes if x is not mine}
    timer = TIMER if mine.worker.device == "cpu" else DEVICE_TIMER
    return Race(pool.sample.variant.name, pool.weight, arms, speedup, timer, cache, block_s, os.getloadavg()[0])


def fastest(races: Sequence[Race]) -> str:
    """Return the arm whose weighted time over all shapes is least."""
    rounds = {a.name: weighted_rounds(races, a.name) or [] for a in races[0].arms}
    return min(rounds, key=lambda name: statistics.median(rounds[name]))


def weighted_speedup(races: Sequence[Race], subject: str) -> tuple[str, Interval]:
    """Return the best rival over all shapes and the interval of (its weighted time / the subject's)."""
    rounds = {a.name: weighted_rounds(races, a.name) or [] for a in races[0].arms}
    best = min((name for name in rounds if name != subject), key=lambda name: statistics.median(rounds[name]))
    return best, ratio_interval(rounds[best], rounds[subject], seed=0)
