"""The judge's own work is shared by threads that do not spin, and leaves torch's number of threads as it was."""

from __future__ import annotations

import threading

import pytest
import torch

from hotswap.optimizer.judge.crew import each
from hotswap.optimizer.judge.stillness import fall_still


def test_answers_come_in_order_and_each_item_is_computed_by_one_thread() -> None:
    found = each(lambda n: (n, torch.get_num_threads()), range(20), 2)
    assert [n for n, _ in found] == list(range(20))
    assert {threads for _, threads in found} == {1}


def test_items_are_worked_on_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=20.0)
    assert each(lambda _: both.wait() >= 0, range(2), 2) == [True, True]


def test_what_the_work_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        each(lambda n: 1 // n, [1, 0, 1], 2)


def test_nothing_of_it_runs_when_it_is_done_and_other_threads_keep_their_number() -> None:
    before, x = threads_of_torch(), torch.randn(1 << 18)
    for _ in range(3):
        each(lambda _: x.exp(), range(8), 2)
        assert fall_still()
    assert threads_of_torch() == before


def threads_of_torch() -> tuple[int, int]:
    """Return how many threads torch uses from here, and from a thread that begins now."""
    seen = list[int]()
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    return torch.get_num_threads(), seen[0]
