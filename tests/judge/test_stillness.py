"""The judge does nothing itself while a worker is timed."""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from hotswap.optimizer.judge import stillness
from hotswap.optimizer.judge.bank import Bank
from hotswap.optimizer.judge.hall import Hall
from hotswap.optimizer.judge.lane import Lane, drawn
from hotswap.optimizer.judge.pool import make_pool
from hotswap.optimizer.judge.stillness import fall_still, one_thread, running

_MIB = bytes(1 << 20)


@contextmanager
def busy(rounds: int) -> Iterator[threading.Event]:
    """Have a thread compute, the interpreter's lock released, for so many rounds; yields what says that it is done."""
    done, stop = threading.Event(), threading.Event()

    def work() -> None:
        for _ in range(rounds):
            if stop.is_set():
                return
            zlib.crc32(_MIB)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


def test_a_thread_that_computes_is_counted_and_one_that_waits_is_not() -> None:
    waits = threading.Event()
    waiting = threading.Thread(target=waits.wait)
    waiting.start()
    try:
        assert fall_still()
        with busy(1_000_000):
            assert any(running() for _ in range(100))
    finally:
        waits.set()
        waiting.join()


def test_the_judge_waits_for_its_own_threads_to_end_their_work() -> None:
    with busy(10) as done:
        assert fall_still()
        assert done.is_set()


def test_a_thread_of_the_user_that_never_rests_does_not_stop_the_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stillness, "_SETTLES", 3)
    with busy(1_000_000):
        assert not fall_still()


def test_work_by_one_thread_leaves_the_number_of_threads_as_it_was() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    with pytest.raises(RuntimeError), one_thread():
        torch.ones(2) @ torch.ones(3)
    assert torch.get_num_threads() == before


def test_no_thread_of_the_judge_runs_when_the_sets_of_a_sprint_are_filled(
    make_task: Callable[..., Path], halls: Callable[[str], Hall]
) -> None:
    x = torch.randn(256, 1024, generator=torch.Generator().manual_seed(11))
    bank = Bank(make_task("def reference(x):\n    return (x.exp(),)\n", {"x": x}), 5)
    pool = make_pool(bank, bank.recorded[0], 1.0, 16 << 20)
    source, worker = random.Random(3), halls("cpu").trusted({})
    lane = Lane("eager", worker, None, 5.0)
    try:
        lane.enter(pool)
        for _ in range(5):
            x.exp()  # by all threads, which then spin
            lane.prepare(pool, [drawn(pool, source) for _ in range(pool.sets)], None)
            assert running() == 0
    finally:
        lane.leave()
        halls("cpu").give_back(worker)
