"""Decide by intervals: whether a candidate replaces its parent, and what a task ends with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..extractor.task import Task
from .attempt import Attempt
from .timing import ratio_interval
from .verdict import Arm, Interval, Race, Verdict
from .winner import Choice

# Within this much of the floor a task is solved: the floor itself is measured, to a few percent.
AT_FLOOR = 1.05
# A kernel this much faster than its rivals is tried in the model even where its own interval holds 1.0.
WORTH_TRYING = 1.02


@dataclass(frozen=True)
class Decision:
    """What a task ends with, and the one line that says why."""

    choice: Choice
    reason: str


def gain(new: Verdict, old: Verdict) -> Interval | None:
    """Return how many times faster `new` is than `old`, both measured against the same rivals; None where untimed.

    The two were measured apart, so their errors add in squares, in the logarithm: times are positive and skewed.
    """
    if new.speedup is None or old.speedup is None:
        return None
    a, b = new.speedup, old.speedup
    median = a.median / b.median
    down = math.hypot(math.log(a.median / a.low), math.log(b.high / b.median))
    up = math.hypot(math.log(a.high / a.median), math.log(b.median / b.low))
    return Interval(median, median * math.exp(-down), median * math.exp(up))


def replaces(new: Verdict, parent: Verdict | None) -> bool:
    """Whether `new` becomes the parent: the first accepted one, then only a gain that clears the noise."""
    if not new.accepted:
        return False
    if parent is None:
        return True
    clear = gain(new, parent)
    return clear is not None and clear.low > 1.0


def arm(race: Race, name: str) -> Arm | None:
    return next((a for a in race.arms if a.name == name), None)


def candidate_arm(race: Race) -> Arm | None:
    """Return the side that raced the rivals; None in a baseline, where all are rivals."""
    return next((a for a in race.arms if a.name not in ("eager", "inductor")), None)


def median_us(verdict: Verdict) -> float | None:
    """Return the candidate's time of one call, weighted over the shapes; None where it was not timed."""
    timed = [(race.weight, found.median_us) for race in verdict.races if (found := candidate_arm(race))]
    total = sum(weight for weight, _ in timed)
    return sum(weight * us for weight, us in timed) / total if total else None


def headroom(task: Task, baseline: Race, verdict: Verdict | None) -> float | None:
    """Return how many times slower than its floor the task runs: the candidate, or the best rival where there is none.

    The floor is taken where the judge measured: as the same share of eager's time as in the model.
    """
    eager = arm(baseline, "eager")
    if not task.floor_us or not task.eager_us or eager is None:
        return None
    best = min(a.median_us for a in baseline.arms)
    if verdict is not None and verdict.speedup is not None:
        best /= verdict.speedup.median
    return best / (eager.median_us * task.floor_us / task.eager_us)


def decide(
    task: Task, baseline: Race | None, best: Attempt | None, history: Sequence[Attempt], refusals: Sequence[str] = ()
) -> Decision:
    """Return what the task ends with: our kernel where it reads faster than the best rival, else that rival.

    One whose interval holds 1.0 goes on to the ablation in the whole model, which drops what does not pay. Without a
    baseline nothing was tried, and the task is left alone: Inductor's code for it is in every tail that compiles.
    """
    if baseline is None:
        return Decision("leave", nothing_passed(history, refusals))
    inductor = inductor_gain(baseline)
    if best is not None and best.verdict is not None and best.verdict.speedup is not None:
        won = best.verdict.speedup
        rival = "Inductor's code" if inductor is not None and inductor.low > 1.0 else "eager"
        doubt = "" if won.low > 1.0 else "; within noise alone, so the whole model decides"
        if won.low > 1.0 or won.median >= WORTH_TRYING:
            who = f"{best.proposer}, attempt {history.index(best) + 1} of {len(history)}"
            return Decision("kernel", f"{times(won)} {rival}; {who}{doubt}")
        ours = f"our best was {times(won)} that"
    else:
        ours = nothing_passed(history, refusals)
    if inductor is not None and inductor.low > 1.0:
        return Decision("inductor", f"Inductor's code is {times(inductor)} eager; {ours}")
    slack = headroom(task, baseline, None)
    at_floor = " and at its floor" if slack is not None and slack <= AT_FLOOR else ""
    return Decision("leave", f"eager is as fast as anything measured{at_floor}; {ours}")


def inductor_gain(baseline: Race) -> Interval | None:
    """Return (eager's time / Inductor's) of a baseline, None where Inductor has no code for the region."""
    eager, inductor = arm(baseline, "eager"), arm(baseline, "inductor")
    if eager is None or inductor is None:
        return None
    return ratio_interval(eager.samples_us, inductor.samples_us, seed=0)


def nothing_passed(history: Sequence[Attempt], refusals: Sequence[str]) -> str:
    """Return why no candidate is left: what the last was rejected for, or why there was none."""
    if not history:
        return "; ".join(("no proposer had a candidate", *refusals))
    last = history[-1].verdict
    reason = f": {last.reason} ({last.stage})" if last is not None and last.reason else ""
    return f"none of {len(history)} candidates passed{reason}"


def times(interval: Interval) -> str:
    return f"{interval.median:.2f}x ({interval.low:.2f} to {interval.high:.2f})"
