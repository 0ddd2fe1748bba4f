"""Run a level of KernelBench from a local checkout: what templates, and a language model where one is named, reach.

usage: python benchmarks/kernelbench.py CHECKOUT [--level 1] [--only TEXT] [--seconds 60] [--device auto] [--dtype auto]
                                        [--llm MODEL --api-base URL --llm-budget LIMITS] [--out DIR]

Each problem becomes a task, is searched before the judge, and its winner is written as `ModelNew`. A problem that a
trivial answer passes, or that is no task, is skipped and listed with the reason; it counts for nobody. fast_p is the
share of the others with a right kernel more than p times as fast as eager, and as torch.compile. What OUT holds already
is not run again.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotswap.benchmarks.kernelbench_kit.form import model_new
from hotswap.extractor.captured_function import function_of
from hotswap.extractor.load_task import load_task
from hotswap.extractor.new_task import new_task
from hotswap.extractor.problem import read_problem
from hotswap.models.errors import HotswapError
from hotswap.models.record import Record
from hotswap.models.settings import Settings, resolve
from hotswap.models.spec import resolve_device, resolve_dtype
from hotswap.optimizer.candidate import Proposer
from hotswap.optimizer.judge.judge import Judge
from hotswap.optimizer.ledger import Ledger
from hotswap.optimizer.llm.prompt import Setting
from hotswap.optimizer.llm.proposer import LlmProposer
from hotswap.optimizer.llm.service import LlmService
from hotswap.optimizer.llm.start import start_llm
from hotswap.optimizer.proposers.lifted import Lifted
from hotswap.optimizer.proposers.offered import proposers
from hotswap.optimizer.search import search
from hotswap.optimizer.winner import Winner
from hotswap.profiler.limits import measure

PS = (1.0, 1.5, 2.0, 3.0)
RIVALS = ("eager", "inductor")


@dataclass(frozen=True)
class Outcome(Record):
    """One problem. skipped: why it counts for nobody, None where it counts. speedup: of a right kernel, by rival.

    A rival is absent where it has no code for the problem; without a right kernel there are none.
    """

    problem: str
    skipped: str | None
    choice: str
    proposer: str | None
    speedup: dict[str, float]
    attempts: int
    reason: str


@dataclass(frozen=True)
class Outcomes(Record):
    """All problems that were run, in the level's order."""

    level: str
    problems: tuple[Outcome, ...]


def problems(checkout: Path, level: int, only: str) -> list[Path]:
    """Return the level's files in its own order; raise SystemExit where the checkout has none."""
    folder = next((f for f in (checkout / "KernelBench" / f"level{level}", checkout / f"level{level}", checkout)
                   if any(f.glob("*.py"))), None)  # fmt: skip
    if folder is None:
        raise SystemExit(f"{checkout}: no KernelBench/level{level}/*.py there; give the path of a checkout")
    found = [p for p in folder.glob("*.py") if only in p.name and not p.name.startswith("_")]
    return sorted(found, key=lambda p: (int(m[0]) if (m := re.match(r"\d+", p.name)) else 0, p.name))


def fast_p(outcomes: Sequence[Outcome], p: float, rival: str) -> float:
    """Return the share of the problems that count with a right kernel more than `p` times as fast as the rival."""
    counted = [o for o in outcomes if o.skipped is None]
    fast = sum(o.speedup.get(rival, 0.0) > p for o in counted)
    return fast / len(counted) if counted else 0.0


def run_problem(path: Path, out: Path, settings: Settings, seconds: float, llm: LlmService | None) -> Outcome:
    """Search one problem and write its winner as ModelNew; a problem that is no task is skipped, with the reason."""
    folder = out / "tasks" / path.stem
    shutil.rmtree(folder, ignore_errors=True)
    device = resolve_device(settings.device)
    dtype = None if settings.dtype == "auto" else resolve_dtype(settings.dtype, device)
    try:
        new_task(path, folder, device=device, dtype=dtype, seed=settings.seed)
        winner = searched(folder, out, seconds, llm)
    except HotswapError as error:  # not one graph, random, a trivial answer passes, or the file itself raises
        why = str(error)
        for place in (path, folder, folder.absolute()):
            why = why.removeprefix(f"{place}: ")
        return Outcome(path.stem, why, "leave", None, {}, 0, "skipped")
    if winner.source is not None:
        function = function_of(read_problem(path, settings.seed), device, dtype)
        text = model_new(path.read_text(encoding="utf-8"), winner.source, function.paths)
        (out / f"{path.stem}_new.py").write_text(text, encoding="utf-8")
    done = speedups(winner)
    return Outcome(path.stem, None, winner.choice, winner.proposer, done, winner.attempts, winner.reason)


def searched(folder: Path, out: Path, seconds: float, llm: LlmService | None) -> Winner:
    """Return how a task's search ends, every attempt kept in the level's one ledger."""
    loaded = load_task(folder)
    with Judge(folder, block_s=0.05) as judge, Ledger(out / "ledger.db") as ledger:
        offered: list[Proposer] = list(proposers(loaded))
        lifted = Lifted(ledger.source, [p.name for p in offered])
        if llm is not None:
            setting = Setting(loaded.task, loaded.source, measure(loaded.task.device), judge.baseline())
            offered.append(LlmProposer(setting, llm, ledger.source))
        return search(folder, ledger=ledger, judge=judge, proposers=[*offered, lifted], seconds=seconds)


def speedups(winner: Winner) -> dict[str, float]:
    """Return (rival's time / kernel's) of a winner that is a kernel, by rival; KernelBench has one shape a problem."""
    if winner.choice != "kernel" or not winner.races:
        return {}
    race = winner.races[0]
    return {name: interval.median for name, interval in race.speedup.items() if name in RIVALS}


def table(outcomes: Sequence[Outcome]) -> str:
    """Return what is printed at the end: each problem that counts, the score, and what was skipped and why."""
    counted, skipped = ([o for o in outcomes if (o.skipped is None) is wanted] for wanted in (True, False))
    width = max((len(o.problem) for o in outcomes), default=0)
    lines = [f"{'problem':{width}}    eager  compile  ends with"] if counted else []
    lines += [f"{o.problem:{width}}  {_times(o, 'eager')}  {_times(o, 'inductor')}  {_ending(o)}" for o in counted]
    lines += ["", f"{len(counted)} problems counted, {len(skipped)} skipped", "", "fast_p   eager  compile"]
    lines += [f"p = {p:<4g} {fast_p(outcomes, p, 'eager'):5.2f}  {fast_p(outcomes, p, 'inductor'):7.2f}" for p in PS]
    lines += ["", *(f"skipped  {o.problem}: {o.skipped}" for o in skipped)] if skipped else []
    return "\n".join(lines)


def _times(outcome: Outcome, rival: str) -> str:
    width = len("compile")
    return f"{outcome.speedup[rival]:{width - 1}.2f}x" if rival in outcome.speedup else f"{'-':>{width}}"


def _ending(outcome: Outcome) -> str:
    by = f" by {outcome.proposer}" if outcome.proposer else ""
    return f"{outcome.choice}{by}, {outcome.attempts} tried"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "checkout", type=Path, nargs="?", help="a local checkout of KernelBench, or a folder of problems"
    )
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="problems whose file name holds this")
    parser.add_argument("--seconds", type=float, default=60.0, help="of search for each problem")
    parser.add_argument("--out", type=Path, default=Path("runs/kernelbench"))
    flags = ("device", "dtype", "llm", "api_base", "llm_budget", "llm_price")
    for name in flags:
        parser.add_argument(f"--{name.replace('_', '-')}")
    given = parser.parse_args()
    if given.checkout is None:  # `make bench` runs every suite, and this one needs what only its user has
        print("kernelbench: give the path of a checkout (https://github.com/ScalingIntelligence/KernelBench)")
        return 0
    settings = resolve({name: getattr(given, name) for name in flags})
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / f"level{given.level}.json"
    done = {o.problem: o for o in Outcomes.load(kept).problems} if kept.exists() else {}
    llm = start_llm(settings, given.out / "llm.jsonl")
    try:
        for path in problems(given.checkout, given.level, given.only):
            if path.stem not in done:
                done[path.stem] = run_problem(path, given.out, settings, given.seconds, llm)
                Outcomes(f"level{given.level}", tuple(done.values())).save(kept)
            one = done[path.stem]
            print(f"{one.problem}: {one.skipped or one.reason}", file=sys.stderr)
    finally:
        if llm is not None:
            print(json.dumps(llm.account().to_dict()), file=sys.stderr)
            llm.close()
    print(table(list(done.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
