"""Search every task of a run within one budget, the most attainable gain first; write how each ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypedDict

from ..extractor.load_task import load_task
from ..extractor.task import Extraction, Task, task_folder
from ..models.errors import InputError
from ..models.progress import Progress
from ..models.settings import Settings
from ..optimizer.candidate import Proposer
from ..optimizer.judge.hall import Hall
from ..optimizer.judge.judge import Judge
from ..optimizer.ledger import Ledger
from ..optimizer.proposers.cpu_attention import CpuAttention
from ..optimizer.proposers.packed_linear import PackedLinear
from ..optimizer.proposers.template import Template
from ..optimizer.search import search
from ..optimizer.winner import Winner
from .run_directory import RunDirectory

# A task whose floor would make the whole model faster by less than this cannot be told from noise in the model.
_COULD_MOVE_THE_MODEL = 1.005
# Under this much of the budget a judge cannot even start its rivals.
_LEAST_SECONDS = 3.0
_LONG_BUDGET_S = 300.0


def search_tasks(directory: RunDirectory, extraction: Extraction, settings: Settings, progress: Progress) -> None:
    """Write `winners/<task>.json` for every task; one that is there already is not searched again."""
    ends = time.monotonic() + settings.budget_s
    with Ledger(directory.ledger) as ledger, ExitStack() as until_done:
        hall: Hall | None = None
        for rank, task in enumerate(extraction.tasks):
            path = directory.winners / f"{task.name}.json"
            if path.exists():
                continue
            seconds = _portion(extraction.tasks[rank:], ends - time.monotonic())
            reason = _not_worth_it(task, seconds)
            if reason is not None:
                _left_alone(task, reason).save(path)
                continue
            folder = task_folder(directory.tasks, rank, task)
            # One for all tasks, and none where there is nothing to search: it takes seconds to start.
            hall = hall or until_done.enter_context(Hall(device=task.device))
            try:
                winner = _search_one(folder, ledger, hall, seconds, settings, progress)
            except InputError as error:  # the judge refuses a task that proves nothing, and says what it lacks
                winner = _left_alone(task, str(error))
            winner.save(path)


def _search_one(
    folder: Path, ledger: Ledger, hall: Hall, seconds: float, settings: Settings, progress: Progress
) -> Winner:
    loaded = load_task(folder)
    proposers: list[Proposer] = [PackedLinear(loaded), CpuAttention(loaded), Template(loaded)]
    with Judge(folder, hall=hall, **_pace(settings, loaded.task)) as judge:
        return search(folder, ledger=ledger, judge=judge, proposers=proposers, seconds=seconds, progress=progress)


def _portion(tasks: Sequence[Task], left_s: float) -> float:
    """Return the first task's seconds of what is left: by its share of the attainable gain still ahead."""
    gains = [max(t.gain_us, 0.05 * t.eager_us) for t in tasks]
    return left_s * gains[0] / sum(gains) if sum(gains) else 0.0


def _not_worth_it(task: Task, seconds: float) -> str | None:
    if task.kind == "memory" and task.ceiling < _COULD_MOVE_THE_MODEL:
        return f"even at its floor the model would gain {100 * (task.ceiling - 1):.2f}%, less than can be measured"
    if task.kind == "anchor" and task.share < _COULD_MOVE_THE_MODEL - 1:
        return f"{100 * task.share:.2f}% of the step: less than can be measured in the model"
    if seconds < _LEAST_SECONDS:
        return "the budget ended before it was tried"
    return None


def _left_alone(task: Task, reason: str) -> Winner:
    return Winner(task.name, task.fingerprint, "leave", None, None, None, None, False, 0, reason)


def _pace(settings: Settings, task: Task) -> Pace:
    """Return how the judge times: a long budget pays for blocks over which clocks settle and pools beyond the caches.

    A short one buys small blocks, and fewer of them where a task has several shapes to time.
    """
    if task.device != "cpu":  # device time is steady: short blocks do, and the judge knows how large a pool must be
        return {"block_s": 0.05, "rounds": 8, "pool_bytes": None}
    if settings.budget_s >= _LONG_BUDGET_S:
        return {"block_s": 0.2, "rounds": 8, "pool_bytes": 96 << 20}
    return {"block_s": 0.03, "rounds": 10 if len(task.cases) == 1 else 6, "pool_bytes": 24 << 20}


class Pace(TypedDict):
    """How the judge times: seconds of a block, blocks a side, bytes of timed input sets."""

    block_s: float
    rounds: int
    pool_bytes: int | None
