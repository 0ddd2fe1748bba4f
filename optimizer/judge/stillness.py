"""Keep this process off the cores while a worker is timed.

A thread of OpenMP spins for 3 to 10 ms after its part of the work. Where it does so on one of two cores, the worker's
second thread waits for it, and a sprint of 24 calls began 3.3 ms late for every arm: kernels that differ by 1.5x then
read 1.2x.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

_SETTLE_S = 0.001
_SETTLES = 50
_THREADS = Path("/proc/self/task")


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute by this thread alone, so that no other one spins when it is done."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fall_still() -> bool:
    """Sleep until no other thread of this process runs; return whether it came to that in time."""
    for _ in range(_SETTLES):
        time.sleep(_SETTLE_S)
        if not running():
            return True
    return False


def running() -> int:
    """Return how many threads of this process run or wait for a core, the one that asks apart; 0 without /proc."""
    mine, count = str(threading.get_native_id()), 0
    for thread in _THREADS.glob("*"):
        with suppress(OSError):  # it ended meanwhile
            state = (thread / "stat").read_text().rsplit(") ", 1)[1][0]
            count += state == "R" and thread.name != mine
    return count
