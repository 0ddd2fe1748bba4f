"""Budgets hold: what could pass a limit is not sent, and what was spent is known to the cent, after a death too."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from hotswap.models.errors import RecordError, SpecError
from hotswap.models.llm_budget import LlmBudget, LlmPrice
from hotswap.optimizer.llm.meter import BudgetSpent, Meter, most_tokens

HELLO = [{"role": "user", "content": "hello"}]
PRICE = LlmPrice(3.0, 15.0)
NOTE = {"task": "gelu", "strategy": "begin"}


def spend_all(meter: Meter) -> None:
    """Send requests that cost the most they can, until none may be sent."""
    while True:
        made = meter.reserve(HELLO, 4096, NOTE)
        meter.settle(made, made.prompt_tokens, made.max_tokens)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_money_is_counted_from_usage_and_price() -> None:
    meter = Meter(LlmBudget(usd=10.0), PRICE)
    for _ in range(3):
        meter.settle(meter.reserve(HELLO, 8192, NOTE), 10_000, 2_000)
    assert meter.spent().usd == pytest.approx(3 * (10_000 * 3 + 2_000 * 15) / 1e6)
    assert meter.spent().tokens == 36_000


def test_money_nobody_knows_the_price_of_is_refused() -> None:
    with pytest.raises(SpecError, match="--llm-price"):
        Meter(LlmBudget(usd=1.0), None)
    assert Meter(LlmBudget(requests=1), None).spent().usd is None


def test_no_request_can_pass_the_limit_of_money() -> None:
    meter = Meter(LlmBudget(usd=0.05), PRICE)
    with pytest.raises(BudgetSpent, match=r"of 0.05 usd are spent"):
        spend_all(meter)
    assert 0.045 < (meter.spent().usd or 0.0) <= 0.05


def test_no_request_can_pass_the_limit_of_tokens() -> None:
    meter = Meter(LlmBudget(tokens=10_000), None)
    with pytest.raises(BudgetSpent, match="of 10000 tokens"):
        spend_all(meter)
    assert 9_000 < meter.spent().tokens <= 10_000


def test_requests_and_time_are_limits_too() -> None:
    clock = Clock()
    meter = Meter(LlmBudget(requests=2, seconds=60.0), None, clock=clock)
    meter.release(meter.reserve(HELLO, 100, NOTE))
    clock.now = 59.0
    assert meter.reserve(HELLO, 100, NOTE).seconds == pytest.approx(1.0)
    with pytest.raises(BudgetSpent, match="2 of 2 requests"):
        meter.reserve(HELLO, 100, NOTE)
    clock.now = 60.0
    late = Meter(LlmBudget(seconds=60.0), None, clock=clock)
    late.release(late.reserve(HELLO, 100, NOTE))
    clock.now = 121.0
    with pytest.raises(BudgetSpent, match="60 s are over"):
        late.reserve(HELLO, 100, NOTE)


def test_a_request_under_way_holds_what_it_may_cost_until_it_is_settled() -> None:
    meter = Meter(LlmBudget(tokens=5_000), None)
    first = meter.reserve(HELLO, 4_500, NOTE)
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.append(meter.reserve(HELLO, 4_000, NOTE).max_tokens))
    waiting.start()
    waiting.join(0.1)
    assert got == []
    meter.settle(first, 10, 20)
    waiting.join(5.0)
    assert got == [4_000]


def test_what_the_server_does_not_count_is_counted_in_full() -> None:
    meter = Meter(LlmBudget(tokens=100_000), None)
    made = meter.reserve(HELLO, 1_000, NOTE)
    meter.settle(made, None, None)
    assert meter.spent().tokens == most_tokens(HELLO) + 1_000


def test_a_run_that_died_goes_on_with_what_is_left(tmp_path: Path) -> None:
    journal, clock = tmp_path / "llm.jsonl", Clock()
    meter = Meter(LlmBudget(usd=1.0), PRICE, journal, clock)
    meter.settle(meter.reserve(HELLO, 1_000, NOTE), 500, 100)
    clock.now = 5.0
    meter.settle(meter.reserve(HELLO, 1_000, NOTE), 500, 100)
    lost = meter.reserve(HELLO, 1_000, NOTE)
    with journal.open("a") as file:
        file.write('{"at": 1, "event": "sett')
    again = Meter(LlmBudget(usd=1.0), PRICE, journal)
    assert again.spent().requests == 3
    assert again.spent().tokens == 1_200 + lost.prompt_tokens + lost.max_tokens
    assert again.spent().seconds == 5.0
    again.release(again.reserve(HELLO, 1_000, NOTE))
    assert [json.loads(line)["number"] for line in journal.read_text().splitlines()] == [1, 1, 2, 2, 3, 4, 4]


def test_a_journal_that_is_none_is_named(tmp_path: Path) -> None:
    journal = tmp_path / "llm.jsonl"
    journal.write_text("nonsense\n")
    with pytest.raises(RecordError, match=r"llm\.jsonl:1"):
        Meter(LlmBudget(requests=1), None, journal)
