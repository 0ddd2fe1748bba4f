"""Outside agents at a run's desk: what they are shown, what is kept of what they try, and what they cannot change."""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest
from scripted import ScriptedJudge, kernel

from hotswap.extractor.new_task import new_task
from hotswap.extractor.task import Task
from hotswap.integrator.agent_guide import write_agent_guide
from hotswap.integrator.desk import Desk
from hotswap.integrator.run_directory import STAGES, RunDirectory
from hotswap.models.errors import CandidateRejected, RecordError, RecordLocked, SpecError
from hotswap.optimizer.ledger import Ledger
from hotswap.optimizer.winner import Winner

REFERENCE = """
import torch


def reference(x):
    return torch.nn.functional.gelu(x)


def inputs(seed, shape_index=0):
    return (torch.randn(64, 96, generator=torch.Generator().manual_seed(seed)),)
"""


class TurnJudge(ScriptedJudge):  # type: ignore[misc]
    """A scripted judge that takes a moment, and notes how many judge at once."""

    at_once = most = opened = 0
    lock = threading.Lock()

    def __init__(self, folder: Path, block_s: float) -> None:
        super().__init__()
        type(self).opened += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        pass

    def verdict(self, source: str) -> Any:
        with self.lock:
            TurnJudge.at_once += 1
            TurnJudge.most = max(TurnJudge.most, TurnJudge.at_once)
        time.sleep(0.02)
        with self.lock:
            TurnJudge.at_once -= 1
        return super().verdict(source)


@pytest.fixture
def run(tmp_path: Path, gelu: Task, monkeypatch: pytest.MonkeyPatch) -> Path:
    TurnJudge.at_once = TurnJudge.most = TurnJudge.opened = 0
    monkeypatch.setattr("hotswap.integrator.desk.Judge", TurnJudge)
    with RunDirectory.create("model", out=tmp_path / "run") as directory:
        gelu.save(directory.tasks / "00-gelu" / "task.json")
        (directory.tasks / "00-gelu" / "reference.py").write_text(REFERENCE)
        for stage in STAGES[:3]:
            directory.finish(stage, 1.0)
    return tmp_path / "run"


def test_a_try_is_on_record_with_its_verdict_whatever_it_is(run: Path) -> None:
    desk = Desk(run)
    good = desk.attempt("gelu", kernel(8.0), by="one")
    bad = desk.attempt("00-gelu", kernel(1.0, "wrong(x)"), by="two", parent=good.attempt.source_hash[:8])
    assert (good.verdict.accepted, bad.verdict.accepted) == (True, False)
    first, second = desk.history("gelu")
    assert (first["by"], first["kept"], second["by"]) == ("one", True, "two")
    assert second["parent"] == first["hash"]
    assert second["outcome"] == "rejected at smoke: the kernel raised NameError"
    assert (run / "tasks" / "00-gelu" / "kernel.py").read_text() == kernel(8.0)


def test_what_was_judged_before_is_looked_up_and_starts_no_judge(run: Path) -> None:
    desk = Desk(run)
    desk.attempt("gelu", kernel(8.0))
    again = desk.attempt("gelu", "# mine\n" + kernel(8.0), by="another")
    assert again.known
    assert again.attempt.number == 1
    assert TurnJudge.opened == 1


def test_a_submitted_kernel_is_what_the_task_ends_with(run: Path) -> None:
    tried = Desk(run).submit("gelu", kernel(8.0), by="me")
    winner = Winner.load(run / "winners" / "gelu.json")
    assert tried.winner == winner
    assert (winner.choice, winner.proposer, winner.source) == ("kernel", "me", kernel(8.0))


def test_a_worse_submission_does_not_replace_a_better_one(run: Path) -> None:
    desk = Desk(run)
    desk.submit("gelu", kernel(5.0))
    desk.submit("gelu", kernel(8.0))
    assert Winner.load(run / "winners" / "gelu.json").source == kernel(5.0)


def test_a_rejected_submission_changes_nothing_and_says_why(run: Path) -> None:
    with pytest.raises(CandidateRejected, match="00-gelu: rejected at smoke: the kernel raised NameError"):
        Desk(run).submit("gelu", kernel(1.0, "wrong(x)"))
    assert not (run / "winners").exists()


def test_before_the_search_has_ended_a_submission_is_kept_for_it_and_ends_nothing(run: Path) -> None:
    body = json.loads((run / "run.json").read_text())
    del body["stages"]["optimize"]
    (run / "run.json").write_text(json.dumps(body))
    Desk(run).submit("gelu", kernel(8.0))
    assert not (run / "winners").exists()
    with Ledger.read(run / "ledger.db") as ledger:
        assert [a.kept for a in ledger.attempts()] == [True]


def test_several_agents_at_once_are_judged_in_turns_and_all_kept(run: Path) -> None:
    with ThreadPoolExecutor(6) as agents:
        list(agents.map(lambda n: Desk(run).attempt("gelu", kernel(8.0 + n), by=f"agent {n}"), range(6)))
    assert TurnJudge.most == 1
    assert sorted(a["by"] for a in Desk(run).history("gelu")) == [f"agent {n}" for n in range(6)]


def test_a_turn_that_does_not_come_is_an_error_that_names_who_has_it(run: Path) -> None:
    with Ledger(run / "ledger.db"), pytest.raises(RecordLocked, match="already writes"):
        Desk(run, turn_s=0.3).attempt("gelu", kernel(8.0))


def test_the_tasks_are_listed_with_what_is_to_gain(run: Path) -> None:
    desk = Desk(run)
    desk.attempt("gelu", kernel(5.0))
    (listed,) = desk.tasks()
    assert listed["task"] == "00-gelu"
    assert listed["attainable_us_a_step"] == 117.0
    assert (listed["attempts"], listed["best_against_best_rival"]) == (1, 2.0)


def test_a_task_is_read_with_its_reference_contract_and_best_kernel(run: Path) -> None:
    desk = Desk(run)
    desk.attempt("gelu", kernel(5.0))
    read = desk.read("gelu")
    assert read["reference"] == REFERENCE
    assert read["best"] == kernel(5.0)
    assert "def kernel(x)" in read["contract"]
    assert Task.from_dict(read["record"]).name == "gelu"


def test_a_wrong_name_parent_or_folder_is_one_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="gelo: no such task"):
        Desk(run).read("gelo")
    with pytest.raises(SpecError, match="0 candidates begin with it"):
        Desk(run).attempt("gelu", kernel(8.0), parent="abc")
    with pytest.raises(RecordError, match="has no tasks"):
        Desk(tmp_path / "nowhere")


def test_the_guide_names_the_tasks_and_the_commands(run: Path, gelu: Task) -> None:
    text = write_agent_guide(run, "model", [gelu]).read_text()
    assert "`00-gelu`: gelu on cpu, 120 us a step, floor 3 us" in text
    assert f"hotswap task try {run}:TASK mine.py" in text
    assert "$" not in text


def test_an_agent_works_through_the_official_client_over_stdio(run: Path) -> None:
    """The server is a process of its own, started as an agent's settings would; only its judge is scripted."""
    mcp = pytest.importorskip("mcp")
    anyio = pytest.importorskip("anyio")
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import test_desk, hotswap.integrator.desk as desk\n"
        "from hotswap.cli.main import main\n"
        "desk.Judge = test_desk.TurnJudge\n"
        f"sys.exit(main(['mcp', {str(run)!r}, '--name', 'tester']))\n"
    )
    good, bad = kernel(5.0), kernel(1.0, "wrong(x)")

    async def talk() -> dict[str, Any]:
        said: dict[str, Any] = {}
        async with mcp.Client(mcp.StdioServerParameters(command=sys.executable, args=["-P", "-c", script])) as client:
            said["tools"] = sorted(t.name for t in (await client.list_tools()).tools)
            said["tasks"] = await client.call_tool("list_tasks", {})
            said["read"] = await client.call_tool("read_task", {"task": "gelu"})
            said["bad"] = await client.call_tool("try_candidate", {"task": "gelu", "source": bad})
            said["refused"] = await client.call_tool("submit_candidate", {"task": "gelu", "source": bad})
            said["good"] = await client.call_tool("submit_candidate", {"task": "gelu", "source": good})
            said["unknown"] = await client.call_tool("read_task", {"task": "silu"})
            said["history"] = await client.call_tool("history", {"task": "gelu"})
        return said

    # In a thread of its own: LiteLLM leaves an event loop in this one, which another would drop unclosed.
    with ThreadPoolExecutor(1) as thread:
        said = thread.submit(anyio.run, talk).result()
    assert said["tools"] == ["history", "list_tasks", "read_task", "submit_candidate", "try_candidate"]
    assert "00-gelu" in said["tasks"].content[0].text
    assert "torch.nn.functional.gelu" in said["read"].content[0].text
    assert json.loads(said["bad"].content[0].text)["stage"] == "smoke"
    assert said["refused"].is_error
    assert "rejected at smoke" in said["refused"].content[0].text
    assert json.loads(said["good"].content[0].text)["accepted"] is True
    assert said["unknown"].is_error
    assert "no such task" in said["unknown"].content[0].text
    assert "accepted" in said["history"].content[-1].text
    with Ledger.read(run / "ledger.db") as ledger:
        assert [(a.proposer, a.accepted) for a in ledger.attempts()] == [("tester", False), ("tester", True)]
    assert Winner.load(run / "winners" / "gelu.json").source == good


@pytest.mark.slow
def test_a_candidate_written_from_what_show_gives_goes_through_the_real_judge(tmp_path: Path) -> None:
    (tmp_path / "gelu.py").write_text(REFERENCE)
    with RunDirectory.create("model", out=tmp_path / "run") as directory:
        new_task(tmp_path / "gelu.py", directory.tasks / "00-gelu")
        for stage in STAGES[:3]:
            directory.finish(stage, 1.0)
    source = "import torch\n\n\ndef kernel(x):\n    return torch.nn.functional.gelu(x)\n"
    tried = Desk(tmp_path / "run", block_s=0.002).submit("gelu", source)
    assert tried.verdict.accepted
    assert Winner.load(tmp_path / "run" / "winners" / "gelu.json").attempts == 1
