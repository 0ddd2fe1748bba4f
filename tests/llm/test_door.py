"""LiteLLM against a real server: every kind of answer becomes a reply or a failure that says what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from chat_server import SECRET, Answer, Serve

from hotswap.optimizer.llm.door import Door, DoorError

pytest.importorskip("litellm")
MODEL = "openai/some-model"
HELLO = [{"role": "user", "content": "hello"}]


def asked(serve: Serve, answer: Answer, timeout_s: float = 5.0) -> DoorError:
    server = serve(lambda n, a: answer)
    with pytest.raises(DoorError) as caught:
        Door(MODEL, server.base).complete(HELLO, max_tokens=100, timeout_s=timeout_s)
    return caught.value


def test_a_reply_comes_with_the_servers_own_counts(serve: Serve) -> None:
    server = serve(lambda n, a: Answer("hi", usage=(1234, 56)))
    reply = Door(MODEL, server.base).complete(HELLO, max_tokens=100, timeout_s=5.0)
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens, reply.cut) == ("hi", 1234, 56, False)
    assert server.asked[0].body["max_tokens"] == 100


def test_a_server_that_counts_nothing_is_not_taken_for_free(serve: Serve) -> None:
    server = serve(lambda n, a: Answer("hi", usage=None))
    reply = Door(MODEL, server.base).complete(HELLO, max_tokens=100, timeout_s=5.0)
    assert reply.prompt_tokens is None
    assert reply.completion_tokens is None


def test_an_answer_without_text_is_empty(serve: Serve) -> None:
    server = serve(lambda n, a: Answer(None))
    assert Door(MODEL, server.base).complete(HELLO, max_tokens=100, timeout_s=5.0).text == ""


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (Answer(status=401, error="Incorrect API key provided", code="invalid_api_key"), "no key"),
        (Answer(status=404, error="The model does not exist", code="model_not_found"), "model"),
        (Answer(status=429, error="slow down", headers={"Retry-After": "7"}), "busy"),
        (Answer(status=429, error="You exceeded your current quota", code="insufficient_quota"), "quota"),
        (Answer(status=402, error="payment required"), "quota"),
        (Answer(status=400, error="maximum context length is 8 tokens", code="context_length_exceeded"), "too long"),
        (Answer(status=400, error="no such parameter"), "refused"),
        (Answer(status=500), "server"),
        (Answer(status=503), "server"),
        (Answer(drop=True), "unreachable"),
    ],
)
def test_each_failure_has_its_name(serve: Serve, answer: Answer, trouble: str) -> None:
    error = asked(serve, answer)
    assert error.trouble == trouble
    assert "\n" not in str(error)
    assert "some-model" in str(error)


def test_a_server_says_when_to_ask_again(serve: Serve) -> None:
    assert asked(serve, Answer(status=429, error="slow down", headers={"Retry-After": "7"})).after_s == 7.0


def test_a_slow_server_is_not_waited_for(serve: Serve) -> None:
    error = asked(serve, Answer("late", delay_s=1.5), timeout_s=0.3)
    assert error.trouble == "time-out"
    assert "0.3 s" in str(error)


def test_a_key_in_a_servers_words_is_hidden(serve: Serve) -> None:
    error = asked(serve, Answer(status=401, error=f"Incorrect API key provided: {SECRET}", code="invalid_api_key"))
    assert SECRET not in str(error)
    assert "[secret]" in str(error)


def test_nothing_listening_is_unreachable() -> None:
    with pytest.raises(DoorError, match="cannot be reached") as caught:
        Door(MODEL, "http://127.0.0.1:9/v1").complete(HELLO, max_tokens=10, timeout_s=5.0)
    assert caught.value.trouble == "unreachable"


def test_a_missing_key_and_an_unknown_name_are_known_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Door(MODEL).problem() is None
    monkeypatch.delenv("OPENAI_API_KEY")
    missing, unknown = Door(MODEL).problem(), Door("nonsense").problem()
    assert missing is not None
    assert missing.trouble == "no key"
    assert "OPENAI_API_KEY" in str(missing)
    assert unknown is not None
    assert unknown.trouble == "model"
    assert Door(MODEL, "http://127.0.0.1:9/v1").problem() is None


def test_a_local_server_is_asked_without_a_key(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    server = serve(lambda n, a: Answer("hi"))
    assert Door(MODEL, server.base).complete(HELLO, max_tokens=10, timeout_s=5.0).text == "hi"


def test_prices_are_litellms_or_unknown() -> None:
    known = Door("openai/gpt-4o").price()
    assert known is not None
    assert 0 < known.prompt < known.completion
    assert Door(MODEL).price() is None


def test_the_package_asks_no_llm_and_does_not_import_litellm() -> None:
    script = (
        "import sys, hotswap, hotswap.integrator.search_tasks, hotswap.optimizer.llm.proposer\n"
        "from hotswap.cli.main import main\n"
        "code = main(['config'])\n"
        "assert code == 0 and 'litellm' not in sys.modules and 'openai' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
