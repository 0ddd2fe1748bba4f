"""A language model's budget and price are read from text as people write them, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotswap.models.errors import SpecError
from hotswap.models.llm_budget import LlmBudget, LlmPrice
from hotswap.models.settings import resolve, rows


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("2.50usd", LlmBudget(usd=2.5)),
        ("$2", LlmBudget(usd=2.0)),
        ("500k tokens, 100 requests, 10m", LlmBudget(tokens=500_000, requests=100, seconds=600.0)),
        ("1req,90s,1.5mtok", LlmBudget(requests=1, seconds=90.0, tokens=1_500_000)),
    ],
)
def test_a_budget_is_read_and_written_back(text: str, budget: LlmBudget) -> None:
    assert LlmBudget.parse(text) == budget
    assert LlmBudget.parse(str(budget)) == budget


@pytest.mark.parametrize("text", ["", "2", "0usd", "-1usd", "1usd,2usd", "ten requests", "1.5 requests", "5 euros"])
def test_what_is_no_budget_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="flag --llm-budget: expected limits such as"):
        resolve({"llm_budget": text}, folder=tmp_path)


@pytest.mark.parametrize("text", ["3", "3,x", "-1,2", "nan,1", "1,2,3"])
def test_what_is_no_price_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="flag --llm-price: expected US dollars"):
        resolve({"llm_price": text}, folder=tmp_path)


def test_a_price_is_dollars_a_million_tokens() -> None:
    assert LlmPrice.parse("3,15").usd(1_000_000, 100_000) == pytest.approx(4.5)


def test_an_address_that_carries_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="without a key in it"):
        resolve({"api_base": "https://user:key@host/v1"}, folder=tmp_path)


def test_llm_settings_survive_the_text_a_run_keeps_them_as(tmp_path: Path) -> None:
    given = resolve({"llm": "openai/x", "llm_budget": "1usd,10m", "llm_price": "3,15"}, folder=tmp_path)
    again = resolve({name: value for name, value, _ in rows(given) if value != "-"}, folder=tmp_path)
    assert (again.llm, again.llm_budget, again.llm_price) == (given.llm, given.llm_budget, given.llm_price)
