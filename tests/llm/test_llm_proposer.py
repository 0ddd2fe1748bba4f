"""A model behind a real server proposes for a task: what it is told, what its answers become, what it may not see."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_server import SECRET, Answer, Asked, ChatServer, Serve
from scripted import PACE, ScriptedExecutor, ScriptedJudge, kernel, race, whole

from hotswap.extractor.task import Task
from hotswap.models.llm_budget import LlmBudget, LlmPrice
from hotswap.optimizer.attempt import Attempt
from hotswap.optimizer.campaign import Campaign, Plan
from hotswap.optimizer.candidate import Candidate
from hotswap.optimizer.ledger import Ledger
from hotswap.optimizer.llm.client import Client
from hotswap.optimizer.llm.door import Door
from hotswap.optimizer.llm.meter import Meter
from hotswap.optimizer.llm.prompt import Setting, playbook
from hotswap.optimizer.llm.proposer import LlmProposer
from hotswap.optimizer.llm.service import LlmService
from hotswap.optimizer.search import search
from hotswap.optimizer.winner import Winner
from hotswap.profiler.recording import Limits

pytest.importorskip("litellm")
LIMITS = Limits("cpu", 20.0, {"float32": 0.2}, 1.0, 32 << 20, "now")
REFERENCE = "import torch\n\n\ndef reference(x):\n    return (torch.nn.functional.gelu(x),)\n"


class Bench:
    """One task before a scripted judge, with a model that answers as a test says."""

    def __init__(self, folder: Path, task: Task, ledger: Ledger) -> None:
        self.folder, self.task, self.ledger = folder, task, ledger
        self.judge = ScriptedJudge()
        self.services: list[LlmService] = []

    def proposer(self, server: ChatServer, *, parallel: int = 1, requests: int = 20, tries: int = 2) -> LlmProposer:
        meter = Meter(LlmBudget(requests=requests), LlmPrice(3.0, 15.0))
        asking = Client(Door("openai/m", server.base), meter, tries=tries, first_pause_s=0.02)
        self.services.append(LlmService(asking, "openai/m", parallel))
        setting = Setting(self.task, REFERENCE, LIMITS, race(eager=20.0, inductor=10.0))
        return LlmProposer(setting, self.services[-1], self.ledger.source)

    def search(self, proposer: LlmProposer, seconds: float = 20.0) -> Winner:
        return search(self.folder, ledger=self.ledger, judge=self.judge, proposers=[proposer], seconds=seconds)


@pytest.fixture
def bench(folder: Path, gelu: Task, ledger: Ledger) -> Iterator[Bench]:
    made = Bench(folder, gelu, ledger)
    yield made
    for service in made.services:
        service.close()


def answers(*replies: str) -> Answering:
    return Answering(list(replies))


class Answering:
    """Gives the replies in order, then says that there is nothing more, as a spent quota does."""

    def __init__(self, replies: list[str]) -> None:
        self.replies = replies
        self._lock = threading.Lock()

    def __call__(self, number: int, asked: Asked) -> Answer:
        with self._lock:
            if not self.replies:
                return Answer(status=429, error="exceeded your current quota")
            return Answer(self.replies.pop(0))


def test_a_model_that_improves_step_by_step_is_kept_and_its_slips_are_reverted(bench: Bench, serve: Serve) -> None:
    steps = [kernel(9.5), kernel(8.0), kernel(9.0), kernel(6.0)]
    winner = bench.search(bench.proposer(serve(answers(*map(whole, steps)))))
    assert [a.kept for a in bench.ledger.attempts()] == [True, True, False, True]
    assert winner.source == kernel(6.0)
    assert winner.proposer == "llm:openai/m"
    assert (bench.folder / "kernel.py").read_text() == kernel(6.0)


def test_a_diff_is_against_the_parent_that_was_shown(bench: Bench, serve: Serve) -> None:
    diff = "```diff\n@@ -1,1 +1,1 @@\n-US = 9.5\n+US = 7.0\n```"
    server = serve(answers(whole(kernel(9.5)), diff))
    winner = bench.search(bench.proposer(server))
    assert winner.source == kernel(7.0)
    assert bench.ledger.attempts()[1].parent == bench.ledger.attempts()[0].source_hash
    assert kernel(9.5).strip() in server.asked[1].prompt


def test_the_prompt_has_the_task_the_machine_and_what_was_tried(bench: Bench, serve: Serve) -> None:
    server = serve(answers(whole(kernel(9.5)), whole(kernel(8.0)), whole(kernel(7.0))))
    bench.search(bench.proposer(server))
    prompt = server.asked[2].prompt
    for said in (
        "torch.nn.functional.gelu(x)",
        "return self.act(x)",
        "x float32[512, 384] strides [384, 1] activation",
        "6 calls a step, weight 6",
        "Copies at 20 GB/s",
        "floor 3 us",
        "eager 20.0 us, inductor 10.0 us",
        "accepted, 1.05x the best rival",
        "16.00 times the floor, 12.5 of 20 GB/s",
        "## Bound by memory",
        "## A kernel on the CPU",
    ):
        assert said in prompt
    assert "## A kernel on a CUDA GPU" not in prompt


def test_a_failed_compile_is_given_back_to_be_repaired(bench: Bench, serve: Serve) -> None:
    broken = kernel(9.0, "wrong(x)")
    server = serve(answers(whole(broken), whole(kernel(8.0))))
    bench.search(bench.proposer(server))
    assert "the kernel raised NameError" in server.asked[1].prompt
    assert "Mend exactly what the judge says" in server.asked[1].prompt
    assert bench.ledger.attempts()[1].knobs == {"strategy": "repair"}


def test_a_malformed_reply_is_told_once_what_was_wrong(bench: Bench, serve: Serve) -> None:
    server = serve(answers("Use larger blocks.", whole(kernel(8.0))))
    winner = bench.search(bench.proposer(server))
    assert winner.source == kernel(8.0)
    assert server.asked[1].body["messages"][-2] == {"role": "assistant", "content": "Use larger blocks."}
    assert "no closed code block" in server.asked[1].body["messages"][-1]["content"]


def test_a_reply_that_stays_malformed_is_dropped_and_counted(bench: Bench, serve: Serve) -> None:
    proposer = bench.proposer(serve(answers("no", "still no", whole(kernel(8.0)))))
    winner = bench.search(proposer)
    assert winner.source == kernel(8.0)
    account = bench.services[0].account()
    assert (account.usable, account.malformed) == (1, 1)


def test_the_same_kernel_with_other_comments_is_not_judged_again(bench: Bench, serve: Serve) -> None:
    again = "# a remark\n" + kernel(9.0).replace("return x", "return  x  # the same")
    bench.search(bench.proposer(serve(answers(whole(kernel(9.0)), whole(again)))))
    assert len(bench.judge.asked) == 1
    assert bench.services[0].account().repeated == 1


def test_a_model_that_has_nothing_new_is_asked_no_more(bench: Bench, serve: Serve) -> None:
    server = serve(lambda n, a: Answer(whole(kernel(9.0))))
    proposer = bench.proposer(server)
    bench.search(proposer)
    assert len(server.asked) == 7
    assert proposer.reason == "6 answers in a row held nothing new, the last: the same kernels again"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(status=401, error="bad key"), "key refused"),
        (Answer(status=404, error="no such model"), "no such model"),
        (Answer(status=500), "2 tries in a row failed"),
        (Answer(drop=True), "2 tries in a row failed"),
        (Answer(status=429, error="exceeded your current quota"), "quota"),
        (Answer(""), "the reply is empty"),
        (Answer(status=400, error="maximum context length is 8"), "the prompt does not fit"),
    ],
)
def test_a_model_that_is_of_no_use_leaves_the_search_standing(
    bench: Bench, serve: Serve, answer: Answer, why: str
) -> None:
    winner = bench.search(bench.proposer(serve(lambda n, a: answer)))
    assert winner.choice == "inductor"
    assert why in winner.reason


def test_a_prompt_that_is_too_long_is_sent_again_without_history_and_playbook(bench: Bench, serve: Serve) -> None:
    too_long = Answer(status=400, error="maximum context length is 8")
    server = serve(lambda n, a: too_long if n == 0 else Answer(whole(kernel(8.0 + n))))
    winner = bench.search(bench.proposer(server, requests=3))
    assert winner.proposer == "llm:openai/m"
    assert "## Traps" in server.asked[0].prompt
    assert "## Traps" not in server.asked[1].prompt


def test_several_requests_are_under_way_and_no_more_than_allowed(bench: Bench, serve: Serve) -> None:
    """The first eight are answered when all eight have come."""
    numbers = iter(range(1000))
    full = threading.Barrier(8)

    def answer(number: int, asked: Asked) -> Answer:
        if number < 8:
            full.wait(timeout=30.0)
        return Answer(whole(kernel(9.0 + next(numbers) / 100)))

    server = serve(answer)
    bench.search(bench.proposer(server, parallel=8, requests=40), seconds=60.0)
    assert server.most_at_once == 8
    assert len(bench.judge.asked) == 40


def test_keys_are_in_no_prompt_and_not_in_the_ledger(bench: Bench, serve: Serve, tmp_path: Path) -> None:
    leak = kernel(9.0, "wrong(x)") + f"# {SECRET}\n"
    server = serve(answers(whole(leak), whole(kernel(8.0))))
    bench.search(bench.proposer(server))
    assert server.asked[0].headers["authorization"] == f"Bearer {SECRET}"
    assert all(SECRET not in asked.prompt for asked in server.asked)
    bench.ledger.close()
    assert all(SECRET.encode() not in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def test_a_search_continued_goes_on_from_the_ledger(bench: Bench, serve: Serve) -> None:
    bench.search(bench.proposer(serve(answers(whole(kernel(9.0)), whole(kernel(8.0))))))
    server = serve(answers(whole(kernel(8.0)), whole(kernel(6.0))))
    winner = bench.search(bench.proposer(server))
    assert len(bench.judge.asked) == 3
    assert kernel(8.0).strip() in server.asked[0].prompt
    assert winner.source == kernel(6.0)


def test_the_loop_around_model_and_judge_takes_less_than_50_ms_a_candidate(bench: Bench, serve: Serve) -> None:
    """The model answers at once and the judge is scripted: what is left is ours, and the ledger's fsyncs."""
    numbers = iter(range(1000))
    proposer = bench.proposer(serve(lambda n, a: Answer(whole(kernel(9.0 + next(numbers) / 100)))), requests=30)
    bench.search(bench.proposer(serve(answers(whole(kernel(9.9))))))  # warm: LiteLLM builds its types on first use
    started = time.process_time()
    bench.search(proposer)
    assert len(bench.judge.asked) == 31
    # CPU time of this process: client, server and LiteLLM are in it, so the bound is generous, and the load is not.
    assert (time.process_time() - started) / 30 < 0.05


def test_the_playbook_shows_the_sections_whose_tags_all_hold() -> None:
    gpu = playbook(frozenset({"cuda", "compute"}), 100_000)
    assert "## Matrix units\n" in gpu
    assert "## Matrix units of the CPU" not in gpu
    assert "when:" not in gpu
    assert len(playbook(frozenset({"cuda", "compute"}), 1_500)) <= 1_500


def test_with_two_second_answers_and_eight_under_way_the_judge_does_not_wait(
    bench: Bench, serve: Serve, tmp_path: Path
) -> None:
    """A tenth of two seconds here, and 0.05 s a verdict: after the first answer none is waited for."""
    numbers = iter(range(1000))
    server = serve(lambda n, a: Answer(whole(kernel(9.0 + next(numbers) / 100)), delay_s=0.2))
    proposer = bench.proposer(server, parallel=8, requests=40)
    gaps: list[float] = []
    ended = [time.monotonic()]

    class TimedExecutor(ScriptedExecutor):  # type: ignore[misc]
        def verdict(self, slot: int, folder: Path, source: str) -> Any:
            gaps.append(time.monotonic() - ended[-1])
            time.sleep(0.05)
            answer = super().verdict(slot, folder, source)
            ended.append(time.monotonic())
            return answer

    plan = Plan(bench.folder, bench.task, lambda: [proposer], PACE, 600.0)
    Campaign(
        [plan],
        ledger=bench.ledger,
        executor=TimedExecutor(),
        budget_s=30.0,
        done=lambda task, winner: None,
        refused=lambda task, why: None,
    ).run()
    assert len(gaps) == 40
    # The median: a busy machine may make a few late. A request at a time would be 0.2 s each.
    assert sorted(gaps[1:])[len(gaps) // 2] < 0.1


def test_the_model_is_asked_before_its_turn_while_the_judge_is_at_work(bench: Bench, serve: Serve) -> None:
    server = serve(lambda n, a: Answer(whole(kernel(5.0 + n))))
    first = kernel(9.0)
    asked_meanwhile: list[int] = []

    class Template:
        name = "template"

        def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
            return None if history else Candidate(first, self.name, None, {})

    class WatchingExecutor(ScriptedExecutor):  # type: ignore[misc]
        def verdict(self, slot: int, folder: Path, source: str) -> Any:
            deadline = time.monotonic() + 10.0
            while source == first and not server.asked and time.monotonic() < deadline:
                time.sleep(0.01)
            asked_meanwhile.append(len(server.asked))
            return super().verdict(slot, folder, source)

    proposer = bench.proposer(server, requests=2)
    plan = Plan(bench.folder, bench.task, lambda: [Template(), proposer], PACE, 600.0)
    Campaign(
        [plan],
        ledger=bench.ledger,
        executor=WatchingExecutor(),
        budget_s=30.0,
        done=lambda task, winner: None,
        refused=lambda task, why: None,
    ).run()
    assert bench.ledger.attempts()[0].proposer == "template"
    assert asked_meanwhile[0] >= 1
