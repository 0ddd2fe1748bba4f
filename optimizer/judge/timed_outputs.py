"""Look at what timed calls gave: with the worker stopped, from outside, in its own memory."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from . import arena
from .bank import Bank
from .hall import Worker, WorkerError
from .pool import Pool, contents
from .target import misfit

_CALLS_LOOKED_AT = 2


class TimedOutputError(Exception):
    """An output of a timed call was not what it must be; the message says where."""


def check_sprint(
    worker: Worker,
    table: arena.Arena,
    strides: Sequence[Sequence[int]],
    pool: Pool,
    filled: Sequence[tuple[int, float]],
    bank: Bank,
    source: random.Random,
) -> None:
    """Raise TimedOutputError unless every call of the last sprint has outputs of its own and random ones are right.

    strides: of the outputs, as they were while untimed. filled: what the sets were filled with.
    """
    chosen = source.sample(range(len(filled)), min(_CALLS_LOOKED_AT, len(filled)))
    targets = pool.sample.targets
    try:
        worker.locate_outputs()
    except WorkerError as error:
        raise TimedOutputError(str(error)) from error
    worker.stop()
    try:
        pointers = table.bytes_at(0, len(filled) * len(targets) * 8).view(torch.int64).view(len(filled), -1).clone()
        got = [
            [_read(worker, int(p), t.reference, s) for p, t, s in zip(pointers[entry], targets, strides, strict=True)]
            for entry in chosen
        ]
        others = worker.others()
    except WorkerError as error:
        raise TimedOutputError(str(error)) from error
    finally:
        worker.go_on()
    if others:
        raise TimedOutputError(f"{others} other process(es) of the candidate run beside a timed call")
    for number, (target, view) in enumerate(zip(targets, pool.sample.is_view, strict=True)):
        if target.reference.numel() and not view and len(set(pointers[:, number].tolist())) < len(filled):
            raise TimedOutputError(f"output {number} of several timed calls lies at one address: a static buffer")
    for entry, outputs in zip(chosen, got, strict=True):
        problem = misfit(outputs, bank.timed_targets(pool.sample, contents(pool, *filled[entry])))
        if problem:
            raise TimedOutputError(f"an output of a timed call is {problem}")


def _read(worker: Worker, pointer: int, like: Tensor, stride: Sequence[int]) -> Tensor:
    raw = worker.read(pointer, arena.span(like.shape, stride) * like.element_size())
    return arena.as_laid_out(raw, str(like.dtype).removeprefix("torch."), like.shape, stride, 0)
