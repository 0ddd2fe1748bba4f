"""Which swaps earn their place? Turn them off one at a time, and on one at a time, inside the whole model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from ..models.workload import Mode
from ..optimizer.timing import ratio_interval
from ..optimizer.verdict import Interval
from .blocks import Pace, Timed, interleave, warm
from .measure import grad_mode
from .results import Ablation
from .verify import Switchable

LEAST_ROUNDS = 5
MOST_ROUNDS = 16

_ALL, _NONE = "all", "none"


def ablate(
    patch: Switchable,
    call: Callable[[], object],
    tasks: Mapping[str, str],
    *,
    seconds: float,
    predicted: Mapping[str, float] | None = None,
    within_noise: Literal["drop", "keep"] = "drop",
    add_one_in: bool = True,
    mode: Mode = "inference",
    pace: Pace | None = None,
    seed: int = 0,
) -> tuple[Ablation, ...]:
    """Return what each task does to the whole step, in the order of `tasks` (task name to fingerprint).

    call: one step of the patched model. seconds: what it may take; many tasks get shorter and fewer blocks, never
    under 5 a side, and add-one-in is left out before that, or where it is not asked for. predicted: Amdahl's gain for
    each task, kept in the record.
    within_noise: what becomes of a task whose interval holds 1.0. Ends with every task on; dropping is the caller's.
    """
    if not tasks:
        return ()
    pace = pace or Pace()
    try:
        with grad_mode(mode):
            each, switch = _costs(patch, call, tasks, pace)
            pace, alone_too = plan(each, switch, len(tasks), seconds, pace, add_one_in=add_one_in)
            samples = interleave(_arms(patch, call, tasks, alone_too=alone_too), pace, seed=seed).samples_us
    finally:
        _set(patch, tasks, tasks)
    ablations = []
    for task in tasks:
        out = ratio_interval(samples[f"without {task}"], samples[_ALL], seed=seed)
        only = ratio_interval(samples[_NONE], samples[f"only {task}"], seed=seed) if alone_too else None
        kept, reason = decide(out, within_noise)
        ablations.append(Ablation(task, out, only, (predicted or {}).get(task, 1.0), kept, reason))
    return tuple(ablations)


def decide(interval: Interval, within_noise: Literal["drop", "keep"] = "drop") -> tuple[bool, str]:
    """Return whether a task stays and why; interval: step without it / step with it."""
    figures = f"{interval.median:.3f}x [{interval.low:.3f}, {interval.high:.3f}] in the model"
    if interval.low > 1.0:
        return True, f"faster with it: {figures}"
    if interval.high < 1.0:
        return False, f"slower with it: {figures}"
    return within_noise == "keep", f"within noise: {figures}"


def plan(
    call_s: float, switch_s: float, tasks: int, seconds: float, pace: Pace, *, add_one_in: bool = True
) -> tuple[Pace, bool]:
    """Return the pace that fits `seconds`, and whether add-one-in fits too.

    call_s: seconds of one step. switch_s: of the first step of a new combination, which has to be compiled.
    """
    for alone_too in (True, False) if add_one_in else (False,):
        arms = 2 * tasks + 2 if alone_too else tasks + 1
        # Each arm warms up and tries its block once; each block has one call ahead of it.
        for block_s in (pace.block_s, pace.block_s / 2, pace.block_s / 4, call_s):
            block_s = max(block_s, call_s)
            once = arms * (switch_s + 4 * call_s + block_s)
            rounds = int((seconds - once) / (arms * (call_s + block_s)))
            if rounds >= LEAST_ROUNDS:
                return _paced(pace, rounds, block_s), alone_too
    return _paced(pace, LEAST_ROUNDS, call_s), False


def _costs(patch: Switchable, call: Callable[[], object], tasks: Mapping[str, str], pace: Pace) -> tuple[float, float]:
    """Return seconds of one step with every task on, and of the first step after a switch to a new combination."""
    each = warm(Timed(call, lambda: _set(patch, tasks, tasks)), pace)
    start = pace.clock()
    _set(patch, tasks, list(tasks)[1:])
    call()
    return each, pace.clock() - start


def _paced(pace: Pace, rounds: int, block_s: float) -> Pace:
    return replace(pace, rounds=min(rounds, max(MOST_ROUNDS, pace.rounds)), block_s=block_s)


def _arms(
    patch: Switchable, call: Callable[[], object], tasks: Mapping[str, str], *, alone_too: bool
) -> dict[str, Timed]:
    names = list(tasks)
    chosen = {_ALL: names, **{f"without {task}": [n for n in names if n != task] for task in names}}
    if alone_too:
        chosen |= {_NONE: [], **{f"only {task}": [task] for task in names}}
    return {arm: Timed(call, lambda on=on: _set(patch, tasks, on)) for arm, on in chosen.items()}  # type: ignore[misc]


def _set(patch: Switchable, tasks: Mapping[str, str], on: Mapping[str, str] | Sequence[str]) -> None:
    for task, fingerprint in tasks.items():
        patch.enable(fingerprint, task in on)
