"""Share the judge's own work among threads that wait for it asleep: OpenMP's would spin when it is done."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

# What is shared is bound by memory: more threads than these bring nothing.
_MOST = 4


def each(work: Callable[[T], R], items: Iterable[T], threads: int, apiece: int = 1) -> list[R]:
    """Return what `work` makes of every item, in order; raises what it raises.

    threads: how many take part, the caller's among them. apiece: threads of torch for each of these.
    """
    before, given = torch.get_num_threads(), list(items)
    many = max(1, min(_MOST, threads, len(given)))
    shares = [functools.partial(_share, work, given[start::many], apiece) for start in range(many)]
    others = [_crew().submit(share) for share in shares[1:]]
    try:
        first = shares[0]()
    finally:
        rest = [other.exception() or other.result() for other in others]
        torch.set_num_threads(before)  # last: threads that begin later have what any thread has set last
    made: list[R] = [None] * len(given)  # type: ignore[list-item]
    for start, share in enumerate([first, *rest]):
        if isinstance(share, BaseException):
            raise share
        made[start::many] = share
    return made


@functools.cache
def _crew() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST - 1, "judge")


def _share(work: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    torch.set_num_threads(threads)
    return [work(item) for item in items]
