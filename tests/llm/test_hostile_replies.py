"""A model that cheats, before the real judge: every reply is rejected with its reason, an honest one after them not."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_server import SECRET, Answer, Asked, Serve
from scripted import race, whole

from hotswap.extractor.load_task import load_task
from hotswap.extractor.new_task import new_task
from hotswap.models.llm_budget import LlmBudget
from hotswap.optimizer.judge import Judge
from hotswap.optimizer.judge.trial import Patience
from hotswap.optimizer.ledger import Ledger
from hotswap.optimizer.llm.client import Client
from hotswap.optimizer.llm.door import Door
from hotswap.optimizer.llm.meter import Meter
from hotswap.optimizer.llm.prompt import Setting
from hotswap.optimizer.llm.proposer import LlmProposer
from hotswap.optimizer.llm.service import LlmService
from hotswap.optimizer.search import search
from hotswap.profiler.recording import Limits

pytest.importorskip("litellm")
LIMITS = Limits("cpu", 20.0, {"float32": 0.2}, 1.0, 32 << 20, "now")
REFERENCE = """
import torch


def reference(x):
    return torch.nn.functional.gelu(x)


def inputs(seed, shape_index=0):
    return (torch.randn(24, 48, generator=torch.Generator().manual_seed(seed)),)
"""
# What the model answers, and the stage that must reject it.
REPLIES = {
    "zeros": ("smoke", "import torch\n\n\ndef kernel(x):\n    return torch.zeros_like(x)\n"),
    "the input itself": ("smoke", "def kernel(x):\n    return x\n"),
    "tells what it finds": (
        "smoke",
        "import os\n\n\ndef kernel(x):\n    raise RuntimeError(str(dict(os.environ)))\n",
    ),
    "remembers by address": (
        "",
        "from torch.nn.functional import gelu\nSEEN = {}\ndef kernel(x):\n    return SEEN.setdefault(id(x), gelu(x))\n",
    ),
}
HONEST = "import torch\n\n\ndef kernel(x):\n    return torch.nn.functional.gelu(x)\n"


@pytest.mark.slow
def test_cheats_are_rejected_by_the_real_judge_and_learn_no_key(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "gelu.py").write_text(REFERENCE)
    folder = tmp_path / "gelu"
    new_task(tmp_path / "gelu.py", folder, limits=LIMITS)
    replies = [whole(source) for _, source in REPLIES.values()] + [whole(HONEST)]

    def answer(number: int, asked: Asked) -> Answer:
        return Answer(replies[number]) if number < len(replies) else Answer(status=429, error="your current quota")

    server = serve(answer)
    service = LlmService(Client(Door("openai/m", server.base), Meter(LlmBudget(requests=20), None)), "openai/m", 1)
    quick = {"block_s": 0.002, "rounds": 2, "pool_bytes": 1 << 18, "inductor": False, "threads": 1}
    with (
        Judge(folder, patience=Patience(load_s=60.0, call_s=5.0), **quick) as judge,  # type: ignore[arg-type]
        Ledger(tmp_path / "ledger.db") as ledger,
    ):
        loaded = load_task(folder)
        setting = Setting(loaded.task, loaded.source, LIMITS, race(eager=20.0))
        proposer = LlmProposer(setting, service, ledger.source)
        search(folder, ledger=ledger, judge=judge, proposers=[proposer], seconds=120.0)
        attempts = ledger.attempts()
    service.close()
    *cheats, honest = attempts
    assert [a.accepted for a in attempts] == [False] * len(REPLIES) + [True]
    for attempt, (stage, _) in zip(cheats, REPLIES.values(), strict=True):
        assert attempt.verdict is not None
        assert stage in (attempt.verdict.stage or "")
        assert attempt.verdict.reason
    assert honest.proposer == "llm:openai/m"
    assert all(SECRET not in asked.prompt for asked in server.asked)
    assert all(SECRET.encode() not in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
