"""How far rankings agree: Kendall's tau over the tasks that two extractions share."""

from __future__ import annotations

import pytest

from hotswap.extractor.ranking import kendall_tau
from hotswap.extractor.task import Extraction, Task


def ranked(*fingerprints: str) -> Extraction:
    tasks = tuple(
        Task(f, f, "memory", "cpu", (), (), 1, (), (), eager_us=1.0, floor_us=0.0, share=0.1, ceiling=1.0)
        for f in fingerprints
    )
    return Extraction("model", tasks, (), graphs=1, breaks=(), covered=1.0)


def test_equal_orders_agree_wholly_and_reversed_ones_not_at_all() -> None:
    assert kendall_tau(ranked(*"abcd"), ranked(*"abcd")) == 1.0
    assert kendall_tau(ranked(*"abcd"), ranked(*"dcba")) == -1.0


def test_one_exchange_of_neighbours_among_four_tasks_costs_a_third() -> None:
    assert kendall_tau(ranked(*"abcd"), ranked(*"bacd")) == pytest.approx(2 / 3)


def test_tasks_that_only_one_ranking_holds_do_not_count() -> None:
    assert kendall_tau(ranked(*"axbc"), ranked(*"abyc")) == 1.0


def test_fewer_than_two_common_tasks_have_no_order() -> None:
    assert kendall_tau(ranked("a"), ranked("a", "b")) is None
