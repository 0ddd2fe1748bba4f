"""One request against a server that misbehaves: retried, waited for, or given up with the reason; all of it counted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from chat_server import Answer, Asked, ChatServer, Serve

from hotswap.models.llm_budget import LlmBudget, LlmPrice
from hotswap.optimizer.llm.client import Client, Stopped, TooLongError
from hotswap.optimizer.llm.door import Door
from hotswap.optimizer.llm.meter import Meter, most_tokens

pytest.importorskip("litellm")
HELLO = [{"role": "user", "content": "hello"}]


def client(server: ChatServer, budget: LlmBudget | None = None, **options: float) -> Client:
    meter = Meter(budget or LlmBudget(requests=50), LlmPrice(3.0, 15.0))
    return Client(Door("openai/m", server.base), meter, first_pause_s=0.02, **options)  # type: ignore[arg-type]


def script(*answers: Answer) -> Callable[[int, Asked], Answer]:
    return lambda n, asked: answers[min(n, len(answers) - 1)]


def test_a_server_that_recovers_is_asked_again(serve: Serve) -> None:
    server = serve(script(Answer(status=500), Answer(status=503), Answer("hi", usage=(100, 10))))
    asking = client(server)
    assert asking.ask(HELLO).text == "hi"
    spent = asking.meter.spent()
    assert (spent.requests, spent.prompt_tokens, spent.completion_tokens) == (3, 100, 10)
    assert spent.usd == pytest.approx(100 * 3e-6 + 10 * 15e-6)


def test_a_server_that_stays_broken_is_given_up(serve: Serve) -> None:
    server = serve(script(Answer(status=500)))
    asking = client(server, tries=3)
    with pytest.raises(Stopped, match="3 tries in a row failed"):
        asking.ask(HELLO)
    assert len(server.asked) == 3
    with pytest.raises(Stopped):
        asking.ask(HELLO)
    assert len(server.asked) == 3


def test_a_dropped_connection_counts_as_if_it_had_been_billed(serve: Serve) -> None:
    server = serve(script(Answer(drop=True), Answer("hi", usage=(100, 10))))
    asking = client(server, answer_tokens=500)
    asking.ask(HELLO)
    assert asking.meter.spent().tokens == most_tokens(HELLO) + 500 + 110


def test_a_rate_limit_is_waited_for_as_long_as_the_server_says(serve: Serve) -> None:
    server = serve(script(Answer(status=429, error="slow down", headers={"Retry-After": "0.4"}), Answer("hi")))
    client(server).ask(HELLO)
    assert server.asked[1].at - server.asked[0].at >= 0.4


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (Answer(status=401, error="bad key", code="invalid_api_key"), "key"),
        (Answer(status=404, error="no such model"), "no such model"),
        (Answer(status=429, error="exceeded your current quota"), "quota"),
    ],
)
def test_what_cannot_get_better_is_not_tried_again(serve: Serve, answer: Answer, what: str) -> None:
    server = serve(script(answer))
    asking = client(server)
    with pytest.raises(Stopped, match=what):
        asking.ask(HELLO)
    assert len(server.asked) == 1
    assert asking.stopped
    assert asking.meter.spent().usd == 0.0


def test_a_prompt_that_is_too_long_stops_nothing_else(serve: Serve) -> None:
    long = Answer(status=400, error="maximum context length", code="context_length_exceeded")
    asking = client(serve(script(long, Answer("hi"))))
    with pytest.raises(TooLongError):
        asking.ask(HELLO)
    assert asking.ask(HELLO).text == "hi"


def test_a_spent_budget_ends_the_asking_with_its_figures(serve: Serve) -> None:
    server = serve(script(Answer("hi")))
    asking = client(server, LlmBudget(requests=2))
    asking.ask(HELLO)
    asking.ask(HELLO)
    with pytest.raises(Stopped, match="budget: 2 of 2 requests"):
        asking.ask(HELLO)
    assert len(server.asked) == 2


def test_a_retry_is_a_request_and_counts_against_the_budget(serve: Serve) -> None:
    server = serve(script(Answer(status=500)))
    with pytest.raises(Stopped, match="budget: 2 of 2 requests"):
        client(server, LlmBudget(requests=2), tries=5).ask(HELLO)
    assert len(server.asked) == 2


def test_the_budget_of_time_cuts_a_request_short(serve: Serve) -> None:
    server = serve(script(Answer("late", delay_s=3.0)))
    started = time.monotonic()
    with pytest.raises(Stopped, match=r"budget: 0.4 s are over"):
        client(server, LlmBudget(seconds=0.4)).ask(HELLO)
    assert time.monotonic() - started < 2.0


def test_the_journal_says_what_each_request_was_for_and_cost(serve: Serve, tmp_path: Path) -> None:
    server = serve(script(Answer("hi", usage=(1000, 100))))
    meter = Meter(LlmBudget(requests=5), LlmPrice(3.0, 15.0), tmp_path / "llm.jsonl")
    Client(Door("openai/m", server.base), meter).ask(HELLO, task="gelu", strategy="begin")
    sent, settled = (json.loads(line) for line in (tmp_path / "llm.jsonl").read_text().splitlines())
    assert (sent["task"], sent["strategy"]) == ("gelu", "begin")
    assert settled["usd"] == pytest.approx(0.0045)
