"""Measure one row of the suite: build the arms, check ours, time all of them in interleaved blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hotswap.integrator.blocks import Pace, Timed, warm
from hotswap.integrator.measure import many_rounds, measure, model_arm, pace_for
from hotswap.integrator.results import EndToEnd, Tail
from hotswap.models.workload import Call
from hotswap.optimizer.verdict import Arm
from hotswap.profiler.limits import measure as measure_limits

from .account import device_work, differences, floor_ms, peak_mb
from .arms import BuiltArm, build_arm, ours_name
from .blame import ArmLost, Watch, cause, device_is_lost
from .cached import cached_bytes, stepping
from .suite import Row, Size, build

# Twice the error that eager itself has to fp32, and a little for where that is nothing.
_ERROR_RATIO, _ERROR_FLOOR = 2.0, 1e-3
# Where there is no room for the model in fp32: twice what bf16 models differ from themselves by the order of sums.
_APART_AT_MOST = 0.06
# Parameters and cached numbers of the largest model that a CPU runs in fp32, too; a GPU's free memory decides there.
_LARGEST_ON_A_CPU = 4e9


@dataclass(frozen=True)
class Asked:
    """How to measure. seconds: after which no further arm is built; the race comes on top, `race_seconds` at most.

    without: arms that are left out, each with the reason, which becomes their note.
    """

    size: Size = "full"
    device: str = "cuda"
    rivals: tuple[str, ...] = ("compile", "reduce-overhead")
    tails: tuple[Tail, ...] = ("cudagraph", "inductor-cudagraph")
    kernels: str = "store"
    seconds: float = 150.0
    race_seconds: float = 25.0
    without: Mapping[str, str] = field(default_factory=dict)


def measured(row: Row, asked: Asked, say: Callable[[str], object], watch: Watch) -> list[dict[str, Any]]:
    """Return the rows of the result file for one workload: one an arm, ours among them, the reason where one is not.

    Raises ArmLost where an arm took the device with it, or failed in the race.
    """
    started = time.monotonic()
    model, call = build(row, asked.size, asked.device)
    say(f"built in {time.monotonic() - started:.0f} s")
    with torch.no_grad():
        limits = measure_limits(asked.device)
        floor = floor_ms(model, call, stepping(call, model_arm(model, call)), limits, causal=row.causal)
        pace = pace_for(model) if asked.size != "tiny" else Pace(rounds=8, block_s=0.02, warm_s=0.1)
        built, notes = _arms(model, call, asked, started, say, watch)
        with watch.blaming():
            ours = _best_of_ours(built, model, call, pace, notes, say, watch)
            race = _race(built, ours, call, pace, asked, watch)
            facts = {arm.name: _account(arm, watch) for arm in built.values()}
    common = {"workload": row.workload(asked.size), "shape": row.shape(asked.size), "dtype": "bfloat16", **floor}
    rows = []
    for arm in race.arms:
        name = "ours" if arm.name == ours else arm.name
        made = built[arm.name]
        rows.append(
            common
            | _timing(arm, race.speedup.get(arm.name), floor["floor_ms"])
            | {"arm": name, "compile_s": made.compile_s, "held_mb": made.held_mb}
            | facts[arm.name]
            | made.facts
            | ({"tail": ours} if arm.name == ours else {})
        )
    rows += [common | {"arm": name, "ms": None, "note": note} for name, note in notes.items()]
    return rows


def _account(arm: BuiltArm, watch: Watch) -> dict[str, Any]:
    """Return what a call costs beside its time; a profiler that fails is no reason to lose the timing."""
    watch.at(arm.name)
    try:
        return device_work(arm.call) | {"peak_mb": peak_mb(arm.call)}
    except (AttributeError, RuntimeError) as error:
        if device_is_lost():
            raise
        return {"account_note": cause(error)}


def _timing(arm: Arm, faster: Any, floor: float) -> dict[str, Any]:
    ms = arm.median_us / 1e3
    return {
        "ms": ms,
        "samples_ms": [us / 1e3 for us in arm.samples_us],
        "ours_faster": faster.to_dict() if faster is not None else None,
        "times_floor": ms / floor if floor else None,
    }


def _arms(
    model: Any, call: Call, asked: Asked, started: float, say: Callable[[str], object], watch: Watch
) -> tuple[dict[str, BuiltArm], dict[str, str]]:
    """Return the arms that could be built, and why others could not."""
    built: dict[str, BuiltArm] = {}
    notes: dict[str, str] = {}
    # Ours first: merged weights move once, which torch's own graphs, captured before, would have to follow.
    for name in ("eager", *(ours_name(tail) for tail in asked.tails), *asked.rivals):
        begun = time.monotonic()
        if name in asked.without:
            notes[name] = asked.without[name]
            continue
        if begun - started > asked.seconds:
            notes[name] = f"not measured: {asked.seconds:.0f} s were spent before it"
            continue
        try:
            with watch.blaming(name):
                built[name] = build_arm(name, model, call, asked.kernels)
        except ArmLost as lost:
            if device_is_lost() or name == "eager":
                raise
            notes[name] = lost.note
        say(f"{name}: {notes.get(name) or f'ready in {time.monotonic() - begun:.0f} s'}")
    return built, notes


def _best_of_ours(
    built: dict[str, BuiltArm],
    model: Any,
    call: Call,
    pace: Pace,
    notes: dict[str, str],
    say: Callable[[str], object],
    watch: Watch,
) -> str | None:
    """Return the arm of ours that is right and quickest in a trial; the others leave the race with their figure."""
    trial: dict[str, float] = {}
    wider = _fits_in_fp32(model, call)
    for name in [n for n in built if n.startswith("ours")]:
        watch.at(name)
        apart = differences(model, call, built["eager"].call(), built[name].call(), wider=wider)
        built[name].facts["check"] = apart
        bound = max(_ERROR_RATIO * apart.get("eager_to_fp32", _APART_AT_MOST / _ERROR_RATIO), _ERROR_FLOOR)
        if not apart.get("to_fp32", apart["to_eager"]) <= bound:
            notes[name] = f"wrong: {apart}"
            del built[name]
            continue
        trial[name] = warm(Timed(built[name].call), pace)
        say(f"{name}: {trial[name] * 1e3:.2f} ms in a trial, {apart}")
    best = min(trial, key=lambda name: trial[name], default=None)
    for name in trial:
        if name != best:
            notes[name] = f"{trial[name] * 1e3:.3f} ms in a trial; {best} was quicker"
            del built[name]
    return best


def _fits_in_fp32(model: Any, call: Call) -> bool:
    numbers = sum(p.numel() for p in model.parameters()) + cached_bytes(call) // 2
    if not torch.cuda.is_available():
        return numbers <= _LARGEST_ON_A_CPU
    torch.cuda.empty_cache()
    # 4 bytes each, the copy in 16 bits that it is made from, and a tenth for what a step needs.
    return 1.1 * 6 * numbers <= torch.cuda.mem_get_info()[0]


def _race(built: dict[str, BuiltArm], ours: str | None, call: Call, pace: Pace, asked: Asked, watch: Watch) -> EndToEnd:
    calls = {name: Timed(arm.call, partial(watch.at, name)) for name, arm in built.items()}
    step_s = warm(calls["eager"], pace)
    if asked.size != "tiny":
        pace = many_rounds(pace, step_s, len(calls), asked.race_seconds)
    return measure(calls, call=call, subject=ours or "eager", pace=pace)


def rivals_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the timed arms of torch.compile among `rows`."""
    return [r for r in rows if r["ms"] is not None and r["arm"] in ("compile", "reduce-overhead", "max-autotune")]
