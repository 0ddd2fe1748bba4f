"""A run with a language model: what it spent is on record and in the report; without it the run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chat_server import SECRET, Answer, Serve
from scripted import ScriptedExecutor, kernel, whole

from hotswap.cli.request import Request
from hotswap.extractor.task import Extraction, Task
from hotswap.integrator.llm_note import llm_notes, save_account
from hotswap.integrator.run_directory import RunDirectory
from hotswap.integrator.search_tasks import search_tasks
from hotswap.models.errors import SpecError
from hotswap.models.llm_budget import LlmBudget
from hotswap.models.progress import silent
from hotswap.models.settings import Settings, resolve
from hotswap.optimizer.judge.hall import _environment
from hotswap.optimizer.llm.client import Client
from hotswap.optimizer.llm.door import Door
from hotswap.optimizer.llm.meter import Meter
from hotswap.optimizer.llm.service import LlmAccount, LlmService
from hotswap.optimizer.winner import Winner
from hotswap.profiler.recording import Limits

pytest.importorskip("litellm")
REFERENCE = "import torch\n\n\ndef reference(x):\n    return (torch.nn.functional.gelu(x),)\n"

Searching = Callable[[Settings], Winner]


@pytest.fixture
def searching(tmp_path: Path, gelu: Task, monkeypatch: pytest.MonkeyPatch) -> Searching:
    """Return a function that searches a run of one task, before a scripted judge, with no other proposers."""
    module = "hotswap.integrator.search_tasks"
    limits = Limits("cpu", 20.0, {"float32": 0.2}, 1.0, 32 << 20, "now")
    monkeypatch.setattr(f"{module}.load_task", lambda folder: SimpleNamespace(task=gelu, source=REFERENCE))
    monkeypatch.setattr(f"{module}.proposers", lambda loaded: [])
    monkeypatch.setattr(f"{module}.measure", lambda device: limits)
    gelu.save(tmp_path / "run" / "tasks" / "00-gelu" / "task.json")

    def search(settings: Settings) -> Winner:
        (tmp_path / "run" / "winners" / "gelu.json").unlink(missing_ok=True)
        run: Any = SimpleNamespace(
            folder=tmp_path / "run",
            ledger=tmp_path / "run" / "ledger.db",
            winners=tmp_path / "run" / "winners",
            tasks=tmp_path / "run" / "tasks",
            tensorboard=tmp_path / "run" / "tb",
        )
        extraction = Extraction("m", (gelu,), (), 1, (), 1.0)
        search_tasks(run, extraction, settings, silent, ScriptedExecutor())
        return Winner.load(tmp_path / "run" / "winners" / "gelu.json")

    return search


def settings(folder: Path, **flags: str) -> Settings:
    return resolve({"llm": "openai/m", "budget": "20s", **flags}, folder=folder)


def test_what_a_model_found_is_kept_and_what_it_cost_is_said_to_the_cent(
    searching: Searching, serve: Serve, tmp_path: Path
) -> None:
    steps = [kernel(9.0), kernel(8.0), kernel(7.0)]
    server = serve(lambda n, a: Answer(whole(steps[n]), usage=(10_000, 1_000)) if n < 3 else Answer("", usage=(0, 0)))
    asked = settings(
        tmp_path, api_base=server.base, llm_budget="3 requests, 1usd", llm_price="3,15", llm_parallel="1"
    )  # fmt: skip
    winner = searching(asked)
    assert (winner.source, winner.proposer) == (kernel(7.0), "llm:openai/m")
    account = LlmAccount.load(tmp_path / "run" / "llm.json")
    assert account.usd == pytest.approx(3 * (0.03 + 0.015))
    assert (account.requests, account.usable) == (3, 3)
    (note,) = llm_notes(tmp_path / "run")
    assert note.startswith("language model openai/m: 0.1350 usd, 33000 tokens, 3 requests")
    assert "stopped: budget: 3 of 3 requests are used up" in note


def test_a_run_continued_has_only_what_is_left_of_its_budget(
    searching: Searching, serve: Serve, tmp_path: Path
) -> None:
    numbers = iter(range(100))
    server = serve(lambda n, a: Answer(whole(kernel(9.0 - next(numbers) / 10))))
    asked = settings(tmp_path, api_base=server.base, llm_budget="4 requests")
    searching(asked)
    searching(asked)
    assert len(server.asked) == 4


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"llm": "anthropic/claude-x"}, "no key; set ANTHROPIC_API_KEY"),
        ({"llm": "nonsense"}, "LiteLLM knows no provider of that name"),
    ],
)
def test_a_model_that_cannot_be_asked_is_one_line_and_the_search_goes_on(
    searching: Searching, tmp_path: Path, flags: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    winner = searching(settings(tmp_path, **flags))
    assert winner.choice == "inductor"
    assert why in winner.reason
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(said) == 1
    assert why in said[0]
    assert "\n" not in said[0]
    assert why in llm_notes(tmp_path / "run")[0]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            Answer(status=400, error="maximum context length is 8"),
            "the prompt does not fit; name a model that reads more",
        ),
        (Answer(""), "6 answers in a row held nothing new, the last: the reply is empty"),
    ],
)
def test_a_model_that_is_given_up_on_a_task_is_one_line_and_in_the_report(
    searching: Searching, serve: Serve, tmp_path: Path, answer: Answer, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(lambda n, asked: answer)
    assert searching(settings(tmp_path, api_base=server.base, llm_budget="50 requests")).choice == "inductor"
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert why in said
    assert "given up on gelu: " in llm_notes(tmp_path / "run")[0]
    assert why in llm_notes(tmp_path / "run")[0]


def test_a_search_that_ends_while_a_server_fails_says_what_it_failed_of(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda n, asked: Answer(status=500, error="out of cheese"))
    client = Client(Door("openai/m", server.base), Meter(LlmBudget(requests=9), None), first_pause_s=60.0)
    service = LlmService(client, "openai/m", 1)
    service.begin([{"role": "user", "content": "hello"}], None)
    deadline = time.monotonic() + 30.0
    while client.trouble is None and time.monotonic() < deadline:
        time.sleep(0.01)
    service.close()
    save_account(tmp_path, service.account())
    (note,) = llm_notes(tmp_path)
    assert "the last request failed: openai/m: the server failed (" in note
    assert "out of cheese" in note


def test_a_run_without_a_model_has_no_account(searching: Searching, tmp_path: Path) -> None:
    assert searching(resolve({"budget": "5s"}, folder=tmp_path)).choice == "leave"
    assert llm_notes(tmp_path / "run") == ()


def test_a_budget_of_money_without_a_price_is_refused_before_a_run_is_made(tmp_path: Path) -> None:
    asked = settings(tmp_path, llm_budget="1usd", out=str(tmp_path / "new"))
    with pytest.raises(SpecError, match="--llm-price"):
        Request("m", asked, True, False, None).new_directory()
    assert not (tmp_path / "new").exists()


def test_a_key_is_not_in_a_candidates_environment() -> None:
    assert SECRET not in _environment(1).values()


def test_the_run_record_keeps_the_model_and_no_key(tmp_path: Path) -> None:
    asked = settings(tmp_path, api_base="http://127.0.0.1:1/v1", llm_budget="5req", out=str(tmp_path / "new"))
    with Request("m", asked, True, False, None).new_directory() as directory:
        assert isinstance(directory, RunDirectory)
    text = (tmp_path / "new" / "run.json").read_text()
    assert "openai/m" in text
    assert SECRET not in text
