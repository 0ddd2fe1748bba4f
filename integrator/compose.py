"""Compose the report of a run from the records its stages left. Measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..extractor.task import Extraction, Task, task_folder
from ..optimizer.attempt import Attempt
from ..optimizer.decision import arm, candidate_arm
from ..optimizer.timing import ratio_interval, weighted_rounds
from ..optimizer.verdict import Interval, Race
from ..optimizer.winner import Winner
from .results import Ablation, Bar, EndToEnd, OpRow, Outcome, SearchPoint, SkippedRow, TaskStory

# A waterfall with more bars than this is not read.
_MOST_BARS = 12


def speedup_over(races: Sequence[Race], rival: str) -> Interval | None:
    """Return (rival's time / candidate's) over all shapes, each weighted by its calls; None where they did not race."""
    own = candidate_arm(races[0]) if races else None
    theirs, ours = weighted_rounds(races, rival), weighted_rounds(races, own.name) if own else None
    return ratio_interval(theirs, ours, seed=0) if theirs and ours else None


def op_rows(
    extraction: Extraction, winners: Mapping[str, Winner], baselines: Mapping[str, Race], ablations: Sequence[Ablation]
) -> tuple[OpRow, ...]:
    """Return one row a task, in the order of the ranking."""
    effects = {a.task: a for a in ablations}
    rows = []
    for rank, task in enumerate(extraction.tasks):
        winner, effect = winners.get(task.fingerprint), effects.get(task.name)
        against_eager = speedup_over(winner.races, "eager") if winner else None
        kept = winner is not None and winner.choice == "kernel"
        after = task.eager_us / against_eager.median if kept and against_eager else None
        inductor = _inductor_share(winner, baselines.get(task.fingerprint))
        rows.append(
            OpRow(
                task=task.name,
                module=task.sites[0].module if task.sites else "",
                module_class=task.sites[0].module_class if task.sites else "",
                sites=len(task.sites),
                ops=task.ops,
                calls=sum(case.calls for case in task.cases),
                before_us=task.eager_us,
                share=task.share,
                after_us=after,
                inductor_us=task.eager_us * inductor if inductor is not None else None,
                floor_us=task.floor_us,
                speedup_eager=against_eager,
                speedup_inductor=speedup_over(winner.races, "inductor") if winner else None,
                model_gain=effect.leave_one_out if effect else None,
                predicted_gain=_amdahl([(task.share, against_eager.median)]) if kept and against_eager else 1.0,
                outcome=_outcome(winner, effect),
                reason=_reason(winner, effect),
                attempts=winner.attempts if winner else 0,
                folder=str(task_folder(Path("tasks"), rank, task)),
            )
        )
    return tuple(rows)


def _inductor_share(winner: Winner | None, baseline: Race | None) -> float | None:
    """Return (Inductor's time / eager's) for a task, from its acceptance races or else from the baseline."""
    races = winner.races if winner and winner.races else (baseline,) if baseline else ()
    pairs = [(arm(r, "inductor"), arm(r, "eager"), r.weight) for r in races]
    if not pairs or any(i is None or e is None for i, e, _ in pairs):
        return None
    return sum(w * i.median_us for i, _, w in pairs if i) / sum(w * e.median_us for _, e, w in pairs if e)


def _outcome(winner: Winner | None, effect: Ablation | None) -> Outcome:
    if effect is not None and not effect.kept:
        return "dropped"
    if winner is None or winner.choice == "leave":
        return "left alone"
    return winner.choice


def _reason(winner: Winner | None, effect: Ablation | None) -> str:
    if effect is not None and not effect.kept:
        return effect.reason
    return winner.reason if winner else "the run ended before it was tried"


def _amdahl(parts: Sequence[tuple[float, float]]) -> float:
    """Return the whole model's speed-up when each (share, speed-up) part of the step is that much faster."""
    rest = 1.0 - sum(share * (1.0 - 1.0 / speedup) for share, speedup in parts)
    return 1.0 / rest if rest > 0 else 1.0


def predicted_speedup(rows: Sequence[OpRow]) -> float | None:
    """Return Amdahl's speed-up over eager of all kept kernels together; None where none was kept."""
    parts = [(r.share, r.speedup_eager.median) for r in rows if r.outcome == "kernel" and r.speedup_eager]
    return _amdahl(parts) if parts else None


def waterfall(rows: Sequence[OpRow], extraction: Extraction, step_us: float, *, after: bool) -> tuple[Bar, ...]:
    """Return the step as bars: a bar a task, then what stands in no task, then "other" up to `step_us`."""
    names = {row.task for row in rows}
    bars = [Bar(r.task, r.after_us if after and r.after_us is not None else r.before_us) for r in rows]
    bars += [Bar(s.what, s.self_us) for s in extraction.skipped if s.what not in names]
    bars.sort(key=lambda bar: -bar.us)
    shown = bars[:_MOST_BARS]
    other = step_us - sum(bar.us for bar in shown)
    return (*shown, Bar("other", max(0.0, other)))


def stories(
    extraction: Extraction,
    tasks: Path,
    winners: Mapping[str, Winner],
    baselines: Mapping[str, Race],
    attempts: Mapping[str, Sequence[Attempt]],
) -> tuple[TaskStory, ...]:
    """Return what was tried on each task, with the sources side by side."""
    told = []
    for rank, task in enumerate(extraction.tasks):
        winner = winners.get(task.fingerprint)
        baseline = baselines.get(task.fingerprint)
        eager, inductor = (arm(baseline, name) if baseline else None for name in ("eager", "inductor"))
        reference = (task_folder(tasks, rank, task) / "reference.py").read_text(encoding="utf-8")
        told.append(
            TaskStory(
                task=task.name,
                reference=reference.partition("\n\n# Recorded shapes")[0] + "\n",
                kernel=winner.source if winner else None,
                points=_points(attempts.get(task.fingerprint, ())),
                eager_us=eager.median_us if eager else _per_call(task),
                inductor_us=inductor.median_us if inductor else None,
                floor_us=task.floor_us / max(sum(c.weight for c in task.cases), 1e-9),
                arithmetic_intensity=task.flops / task.bytes if task.bytes else None,
                attained_gflop_s=task.flops / (task.eager_us * 1e3) if task.eager_us else None,
            )
        )
    return tuple(told)


def _per_call(task: Task) -> float:
    return task.eager_us / max(sum(c.weight for c in task.cases), 1e-9)


def _points(attempts: Sequence[Attempt]) -> tuple[SearchPoint, ...]:
    points: list[SearchPoint] = []
    best: float | None = None
    for attempt in attempts:
        verdict = attempt.verdict
        if attempt.accepted and attempt.median_us is not None:
            best = attempt.median_us if best is None else min(best, attempt.median_us)
        points.append(
            SearchPoint(
                attempt=attempt.number,
                seconds=(attempt.finished or attempt.started) - attempt.started,
                proposer=attempt.proposer,
                accepted=attempt.accepted,
                reason=(verdict.reason or "accepted") if verdict else "unfinished",
                us=attempt.median_us,
                best_us=best,
            )
        )
    return tuple(points)


def skipped_rows(extraction: Extraction) -> tuple[SkippedRow, ...]:
    return tuple(SkippedRow(s.what, s.module, s.share, s.reason) for s in extraction.skipped)


def headline_us(end_to_end: Sequence[EndToEnd], name: str) -> float | None:
    """Return the weighted median step of one arm over all calls; None where it was not measured for each."""
    found = [(e.weight, next((a.median_us for a in e.arms if a.name == name), None)) for e in end_to_end]
    if not found or any(us is None for _, us in found):
        return None
    return sum(weight * us for weight, us in found if us is not None)
