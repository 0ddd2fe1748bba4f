"""Look at what timed calls gave: with the worker stopped, from outside, in its own memory."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from torch import Tensor

from . import arena
from .bank import Bank
from .crew import each
from .hall import Worker, WorkerError
from .lane import Lane
from .pool import HARD, Pool, contents
from .target import misfit

_CALLS_LOOKED_AT = 2


class TimedOutputError(Exception):
    """An output of a timed call was not what it must be; the message says where."""


def check_sprint(lane: Lane, pool: Pool, bank: Bank, source: random.Random, more: Iterable[int] = ()) -> None:
    """Raise TimedOutputError unless every call of the last sprint has outputs of its own and random ones are right.

    more: calls whose outputs are looked at besides.
    """
    chosen = [*more, *source.sample(range(len(lane.contents)), min(_CALLS_LOOKED_AT, len(lane.contents)))]
    lane.spoil(pool)
    try:
        lane.worker.locate_outputs()
        lane.worker.stop()
    except WorkerError as error:
        raise TimedOutputError(str(error)) from error
    got = outputs(lane, pool, chosen)
    rows = lane.pointers(pool)
    for number, (target, view) in enumerate(zip(pool.sample.targets, pool.sample.is_view, strict=True)):
        if target.reference.numel() and not view and len(set(rows[:, number].tolist())) < len(rows):
            raise TimedOutputError(f"output {number} of several timed calls lies at one address: a static buffer")
    refuse_any_wrong(lane, pool, bank, [(entry, found, "") for entry, found in zip(chosen, got, strict=True)])


def outputs(lane: Lane, pool: Pool, entries: Sequence[int]) -> list[list[Tensor]]:
    """Return copies of the outputs of some calls of a stopped worker, from where it says that they lie."""
    assert lane.strides is not None
    rows = lane.pointers(pool).clone()
    try:
        return [
            [
                _read(lane.worker, int(p), t.reference, s)
                for p, t, s in zip(rows[entry], pool.sample.targets, lane.strides, strict=True)
            ]
            for entry in entries
        ]
    except WorkerError as error:
        raise TimedOutputError(str(error)) from error


def refuse_any_wrong(lane: Lane, pool: Pool, bank: Bank, calls: Sequence[tuple[int, Sequence[Tensor], str]]) -> None:
    """Do what `refuse_wrong` does for several calls, on a CPU a core for each: (entry, outputs, what it means)."""
    if lane.worker.device == "cpu" and calls:
        threads = lane.worker.threads
        each(lambda call: refuse_wrong(lane, pool, bank, *call), calls, threads, max(1, threads // len(calls)))
        return
    for call in calls:
        refuse_wrong(lane, pool, bank, *call)


def refuse_wrong(lane: Lane, pool: Pool, bank: Bank, entry: int, found: Sequence[Tensor], what: str = "") -> None:
    """Raise TimedOutputError where the outputs of one call are not right for what its set was filled with."""
    which, by = lane.contents[entry]
    if which == HARD and lane.hard is not None:
        wanted = lane.hard.targets
    else:
        wanted = bank.timed_targets(pool.sample, contents(pool, which, by, lane.change))
    problem = misfit(found, wanted)
    if problem:
        raise TimedOutputError(f"an output of a timed call is {problem}{what}")


def _read(worker: Worker, pointer: int, like: Tensor, stride: Sequence[int]) -> Tensor:
    raw = worker.read(pointer, arena.span(like.shape, stride) * like.element_size())
    return arena.as_laid_out(raw, str(like.dtype).removeprefix("torch."), like.shape, stride, 0)
