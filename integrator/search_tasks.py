"""Search every task of a run, or one alone, within one budget, the most attainable gain a second first."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ..extractor.load_task import load_task
from ..extractor.task import Extraction, Task, task_folder
from ..models.progress import Progress
from ..models.settings import Settings
from ..optimizer.campaign import Campaign, Plan, Standing, Watching
from ..optimizer.candidate import Proposer
from ..optimizer.court import Pace
from ..optimizer.executors import Executor, Inline, Processes, devices
from ..optimizer.ledger import Ledger
from ..optimizer.llm.prompt import Setting
from ..optimizer.llm.proposer import LlmProposer
from ..optimizer.llm.service import LlmService
from ..optimizer.llm.start import start_llm
from ..optimizer.proposers.lifted import Lifted
from ..optimizer.proposers.offered import proposers
from ..optimizer.verdict import Race
from ..optimizer.winner import Winner
from ..profiler.limits import measure
from .llm_note import JOURNAL, save_account
from .run_directory import RunDirectory
from .search_scalars import SearchScalars

# A task whose floor would make the whole model faster by less than this cannot be told from noise in the model.
_COULD_MOVE_THE_MODEL = 1.005
_LONG_BUDGET_S = 300.0
_NO_TIME = "the budget ended before it was tried"


def search_tasks(
    directory: RunDirectory,
    extraction: Extraction,
    settings: Settings,
    progress: Progress,
    executor: Executor | None = None,
) -> None:
    """Write `winners/<task>.json` for every task; one that is there already is not searched again.

    executor: where candidates are judged, this process unless given.
    """

    def ended(task: Task, winner: Winner) -> None:
        winner.save(_path(directory, task))

    make = functools.partial(_plans, directory, extraction, settings)
    for plan in _search(directory.folder, extraction.tasks, make, settings, progress, executor, ended):
        if not _path(directory, plan.task).exists():
            ended(plan.task, _left_alone(plan.task, _NO_TIME))


def search_task(folder: Path, settings: Settings, progress: Progress, executor: Executor | None = None) -> Winner:
    """Return how a task that stands in no run ends; its ledger, `winner.json` and `kernel.py` are in its folder.

    It goes on from what the ledger holds. executor: where candidates are judged, this process unless given.
    """
    task, winners = Task.load(folder / "task.json"), list[Winner]()

    def plans(ledger: Ledger, llm: LlmService | None) -> Sequence[Plan]:
        return [_plan(folder, task, settings, ledger, llm)]

    _search(folder, (task,), plans, settings, progress, executor, lambda _, winner: winners.append(winner))
    winner = winners[0] if winners else _left_alone(task, _NO_TIME)
    winner.save(folder / "winner.json")
    return winner


def _search(
    home: Path,
    tasks: Sequence[Task],
    plans: Callable[[Ledger, LlmService | None], Sequence[Plan]],
    settings: Settings,
    progress: Progress,
    executor: Executor | None,
    ended: Callable[[Task, Winner], None],
) -> Sequence[Plan]:
    """Search what `plans` gives and return it. home: where the ledger and the account of a language model are kept."""
    with ExitStack() as until_done:
        ledger = until_done.enter_context(Ledger(home / "ledger.db"))
        llm = start_llm(settings, home / JOURNAL)
        if llm is not None:
            until_done.callback(lambda: save_account(home, llm.account()))
            until_done.callback(llm.close)
        judging = executor or _executor(tasks, settings)
        if executor is None:
            until_done.callback(judging.close)
        scalars = until_done.enter_context(SearchScalars(home / "tb"))
        made = plans(ledger, llm)
        Campaign(
            made,
            ledger=ledger,
            executor=judging,
            budget_s=settings.budget_s,
            done=ended,
            refused=lambda task, why: ended(task, _left_alone(task, why)),
            watch=functools.partial(_watch, progress, llm, scalars),
            least_gain=_COULD_MOVE_THE_MODEL - 1,
        ).run()
    return made


def _executor(tasks: Sequence[Task], settings: Settings) -> Executor:
    """Return where candidates are judged, as the settings ask; timings on a CPU leave room for one judge a machine."""
    on_gpu = any(task.device != "cpu" for task in tasks)
    slots = settings.gpus if on_gpu else 1
    if settings.ray is not None:
        from ..optimizer.ray_executor import OnRay

        address = None if settings.ray == "local" else settings.ray
        return OnRay(slots, address=address, gpus=float(on_gpu), threads=settings.threads)
    return Processes(devices(slots), settings.threads) if slots > 1 else Inline(settings.threads)


def _plans(
    directory: RunDirectory, extraction: Extraction, settings: Settings, ledger: Ledger, llm: LlmService | None
) -> Sequence[Plan]:
    """Return what is to be searched; tasks that are not worth it end here."""
    plans = []
    for rank, task in enumerate(extraction.tasks):
        if _path(directory, task).exists():
            continue
        reason = _not_worth_it(task)
        if reason is not None:
            _left_alone(task, reason).save(_path(directory, task))
            continue
        plans.append(_plan(task_folder(directory.tasks, rank, task), task, settings, ledger, llm))
    return plans


def _plan(folder: Path, task: Task, settings: Settings, ledger: Ledger, llm: LlmService | None) -> Plan:
    step_us = task.eager_us / task.share if task.share else task.eager_us
    make = functools.partial(_proposers, folder, ledger.source)
    asking = functools.partial(_asking, folder, ledger.source, llm) if llm is not None else None
    return Plan(folder, task, make, _pace(settings, task), step_us, asking)


def _proposers(folder: Path, source: Callable[[str], str]) -> Sequence[Proposer]:
    """Return who proposes for a task, in the order of equals."""
    found = proposers(load_task(folder))
    return [*found, Lifted(source, [p.name for p in found])]


def _asking(folder: Path, source: Callable[[str], str], llm: LlmService, baseline: Race) -> Sequence[Proposer]:
    """Return the language model, which is told the rivals' times."""
    loaded = load_task(folder)
    setting = Setting(loaded.task, loaded.source, measure(loaded.task.device), baseline)
    return [LlmProposer(setting, llm, source)]


def _watch(progress: Progress, llm: LlmService | None, scalars: SearchScalars, standing: Standing) -> None:
    if llm is not None:
        standing = replace(standing, spent=f"{llm.model}: {llm.spent()}")
    scalars.write(standing)
    if isinstance(progress, Watching):
        progress.watch(standing)
    said = f"; {standing.spent}" if standing.spent else ""
    progress("search", min(standing.seconds, standing.budget_s), standing.budget_s, f"{standing.doing}{said}")


def _path(directory: RunDirectory, task: Task) -> Path:
    return directory.winners / f"{task.name}.json"


def _not_worth_it(task: Task) -> str | None:
    if task.kind == "memory" and task.ceiling < _COULD_MOVE_THE_MODEL:
        return f"even at its floor the model would gain {100 * (task.ceiling - 1):.2f}%, less than can be measured"
    if task.kind == "anchor" and task.share < _COULD_MOVE_THE_MODEL - 1:
        return f"{100 * task.share:.2f}% of the step: less than can be measured in the model"
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
    return {"block_s": 0.03, "rounds": 6, "pool_bytes": 24 << 20}
