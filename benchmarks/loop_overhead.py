"""Measure what the loop costs around a language model and the judge: both are stood in for, all between them is real.

    python benchmarks/loop_overhead.py [--candidates 200] [--answer 2.0] [--verdict 0.5] [--in-flight 8] [--out FILE]

overhead: one request at a time to a server on loopback that answers at once, and verdicts that take no time; what
passes between the end of a verdict and the beginning of the next is LiteLLM, HTTP, parsing, the search and the ledger's
fsync. waiting: answers that take `--answer` seconds, verdicts of `--verdict` seconds, several requests in flight; how
long the judge is idle between two verdicts. Run it on a machine that does nothing else. Writes
benchmarks/results/loop-overhead.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path

from hotswap.models.environment import environment
from hotswap.models.llm_budget import LlmBudget, LlmPrice
from hotswap.optimizer.campaign import Campaign, Plan
from hotswap.optimizer.ledger import Ledger
from hotswap.optimizer.llm.client import Client
from hotswap.optimizer.llm.door import Door
from hotswap.optimizer.llm.meter import Meter
from hotswap.optimizer.llm.prompt import Setting
from hotswap.optimizer.llm.proposer import LlmProposer
from hotswap.optimizer.llm.service import LlmService
from hotswap.optimizer.verdict import Race, Verdict
from hotswap.profiler.recording import Limits
from hotswap.tests.gelu_task import gelu_task
from hotswap.tests.llm.chat_server import SECRET, Answer, serving
from hotswap.tests.llm.scripted import PACE, ScriptedExecutor, kernel, whole

RESULTS = Path(__file__).parent / "results"
REFERENCE = "import torch\n\n\ndef reference(x):\n    return (torch.nn.functional.gelu(x),)\n"


class Clocked(ScriptedExecutor):
    """A judge whose verdicts take `seconds`; gaps: how long it was idle before each, from the second on."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.gaps = seconds, list[float]()
        self._ended: float | None = None

    def verdict(self, slot: int, folder: Path, source: str) -> Future[Verdict]:
        if self._ended is not None:
            self.gaps.append(time.perf_counter() - self._ended)
        time.sleep(self.seconds)
        answer = super().verdict(slot, folder, source)
        self._ended = time.perf_counter()
        return answer


def gaps(candidates: int, *, answer_s: float, verdict_s: float, in_flight: int) -> list[float]:
    """Return the seconds between two verdicts, each time, of a search that judges so many candidates."""
    numbers = itertools.count()
    task = gelu_task(floor_us=0.01)
    with (
        tempfile.TemporaryDirectory() as scratch,
        serving(lambda n, asked: Answer(whole(kernel(9.0 + next(numbers) / 1e4)), delay_s=answer_s)) as server,
        Ledger(Path(scratch) / "ledger.db") as ledger,
    ):
        folder, judge = Path(scratch) / "gelu", Clocked(verdict_s)
        task.save(folder / "task.json")
        meter = Meter(LlmBudget(requests=candidates), LlmPrice(3.0, 15.0), Path(scratch) / "llm.jsonl")
        service = LlmService(Client(Door("openai/stood-in", server.base), meter), "openai/stood-in", in_flight)
        limits = Limits("cpu", 20.0, {"float32": 0.2}, 1.0, 32 << 20, "now")

        def asking(baseline: Race) -> list[LlmProposer]:
            return [LlmProposer(Setting(task, REFERENCE, limits, baseline), service, ledger.source)]

        Campaign(
            [Plan(folder, task, list, PACE, 600.0, asking)],
            ledger=ledger,
            executor=judge,
            budget_s=3600.0,
            done=lambda task, winner: None,
            refused=lambda task, why: None,
        ).run()
        service.close()
    assert len(judge.gaps) == candidates - 1, "every answer is judged"
    return judge.gaps


def shown(seconds: list[float]) -> dict[str, float]:
    """Return the figures of a list of times, in milliseconds."""
    ordered = sorted(1e3 * s for s in seconds)
    at = {"median_ms": 0.5, "p90_ms": 0.9, "most_ms": 1.0}
    return {name: round(ordered[int(share * (len(ordered) - 1))], 2) for name, share in at.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=200)
    parser.add_argument("--answer", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--verdict", type=float, default=0.5, metavar="SECONDS")
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS / "loop-overhead.json")
    asked = parser.parse_args()
    os.environ["OPENAI_API_KEY"] = SECRET
    gaps(3, answer_s=0.0, verdict_s=0.0, in_flight=1)  # LiteLLM builds its types on first use
    alone = gaps(asked.candidates, answer_s=0.0, verdict_s=0.0, in_flight=1)
    busy = gaps(
        max(asked.candidates // 4, 9), answer_s=asked.answer, verdict_s=asked.verdict, in_flight=asked.in_flight
    )
    made = {
        "suite": "loop-overhead",
        "environment": environment(),
        "candidates": asked.candidates,
        "overhead": shown(alone),
        "overhead_of_the_last_quarter": shown(alone[-max(len(alone) // 4, 1) :]),
        "waiting": {"answer_s": asked.answer, "verdict_s": asked.verdict, "in_flight": asked.in_flight, **shown(busy)},
    }
    print(json.dumps({k: v for k, v in made.items() if k != "environment"}, indent=1))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
