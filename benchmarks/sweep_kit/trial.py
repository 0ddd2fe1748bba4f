"""Take one model the whole way, in this process: profile, extract, patch with stand-ins, verify, unpatch, compare."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hotswap.extractor.capture import Capture, capture
from hotswap.extractor.extract import extract
from hotswap.extractor.task import Extraction
from hotswap.integrator.model_state import put_back, same_values, seeded
from hotswap.integrator.output_tree import Leaf, snapshot, structure_difference
from hotswap.integrator.patch import Patch, Way, patch_of
from hotswap.integrator.variants import fresh
from hotswap.integrator.verify import verify
from hotswap.models.errors import (
    EnvironmentMissing,
    HotswapError,
    InputError,
    ModelRaised,
    ResourceExhausted,
    SpecError,
)
from hotswap.models.workload import Call, Workload
from hotswap.profiler.record import record
from hotswap.profiler.recording import Limits, Profile

from .reached import reached
from .row import Row
from .stand_in import write_stand_ins

Build = Callable[[], tuple[Workload, str]]
ALL_TASKS = 10_000


class _WrongError(Exception):
    """The patched model's outputs, or those after unpatching, are not the model's."""


@dataclass
class _Trail:
    """What is known of a trial so far. stage: the one at work, or where it ended."""

    stage: str = "build"
    seconds: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def at(self, stage: str) -> Iterator[None]:
        self.stage = stage
        reached(stage)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = round(time.perf_counter() - start, 2)


def try_model(name: str, build: Build, limits: Limits, *, derive: bool = True) -> Row:
    """Return the row of one model; never raises but for what ends a process. derive: verify on derived inputs too."""
    trail = _Trail()
    try:
        outcome, why = _go(trail, build, limits, derive)
    except _WrongError as error:
        outcome, why = "wrong", str(error)
    except Exception as error:  # whatever any model or stage raises is what a sweep is there to list
        outcome, why = _meaning(trail.stage, error)
        if outcome == "failed":
            trail.facts["traceback"] = traceback.format_exc()[-3000:]
    return Row(name, outcome, trail.stage, why, trail.seconds, trail.facts)


def _go(trail: _Trail, build: Build, limits: Limits, derive: bool) -> tuple[str, str]:
    with trail.at("build"):
        workload, built_as = build()
        trail.facts |= {"class": type(workload.model).__name__, "config": built_as}
    with trail.at("eager"):
        before = [_observe(workload.model, call) for call in workload.calls]
        trail.facts["deterministic"] = (
            _difference(before, [_observe(workload.model, c) for c in workload.calls]) is None
        )
    with tempfile.TemporaryDirectory(prefix="hotswap-sweep-") as folder:
        run = Path(folder)
        extraction = _extracted(trail, workload, limits, run)
        if not extraction.graphs:
            return "not extractable", "; ".join(extraction.notes)
        winners = write_stand_ins(extraction, run / "tasks", run)
        if not winners:
            return "nothing", "; ".join(extraction.notes)
        return _swapped(trail, workload, run, before, extraction.way, derive)


def _extracted(trail: _Trail, workload: Workload, limits: Limits, run: Path) -> Extraction:
    with trail.at("profile"):
        profile: Profile = record(workload, limits=limits, steps=1)
    with trail.at("capture"):
        captured: Capture = capture(workload)
    with trail.at("extract"):
        extraction = extract(trail.facts["class"], captured, profile, run / "tasks", top=ALL_TASKS)
    trail.facts |= {
        "graphs": extraction.graphs,
        "tasks": len(extraction.tasks),
        "sites": sum(len(t.sites) for t in extraction.tasks),
        "covered": round(extraction.covered, 3),
        "breaks": list(extraction.breaks)[:8],
        "way": extraction.way,
        "notes": list(extraction.notes),
    }
    return extraction


def _swapped(
    trail: _Trail, workload: Workload, run: Path, before: list[list[Leaf]], way: Way, derive: bool
) -> tuple[str, str]:
    model = workload.model
    state = {key: id(value) for key, value in model.state_dict(keep_vars=True).items()}
    attributes = sorted(model.__dict__)
    with trail.at("patch"):
        patch = Patch(model, run, "eager", way)
        with patch.installed():
            inside = [_observe(model, call) for call in workload.calls]
    trail.facts |= _engaged(patch)
    equal = _difference(before, inside)
    trail.facts["bitwise"] = equal is None
    with trail.at("verify"):
        checks = verify(model, patch.installed, workload.calls, derive=derive, steps=0)
    trail.facts |= {"checks": len(checks), "compiles": patch.compiles, **_engaged(patch)}
    failed = [f"{c.name}: {c.detail}" for c in checks if not c.passed]
    if failed:
        raise _WrongError(f"{len(failed)} of {len(checks)} checks: {failed[0]}")
    with trail.at("unpatch"):
        _require_restored(model, state, attributes)
        after = _difference(before, [_observe(model, call) for call in workload.calls])
        if after is not None and trail.facts["deterministic"]:
            raise _WrongError(f"after unpatching: {after}")
    if not trail.facts["kernel_calls"]:
        return "failed", f"no kernel ran: {trail.facts['left'] or trail.facts['fallbacks']}"
    return "patched", equal or "equal bit for bit"


def _engaged(patch: Patch) -> dict[str, Any]:
    counts = patch.engagement()
    left = [f"{item.task}: {item.reason}" for graph in patch.swaps for item in graph.left]
    reasons: dict[str, int] = {}
    for engagement in counts:
        for reason, times in engagement.fallback_reasons.items():
            reasons[reason] = reasons.get(reason, 0) + times
    return {
        "swapped": sum(len(graph.swapped) for graph in patch.swaps),
        "left": sorted(set(left))[:6],
        "kernel_calls": sum(e.kernel_calls for e in counts),
        "fallbacks": reasons,
    }


def _observe(model: nn.Module, call: Call) -> list[Leaf]:
    given = fresh(call)
    with put_back(model), seeded(model, 0), torch.no_grad():
        return list(snapshot(model(*given.args, **given.kwargs)))


def _difference(one: list[list[Leaf]], other: list[list[Leaf]]) -> str | None:
    """Return the first difference between outputs of equal calls, in structure or by a single bit."""
    for left, right in zip(one, other, strict=True):
        if said := structure_difference(tuple(left), tuple(right)):
            return said
        for a, b in zip(left, right, strict=True):
            if a.tensor is not None and b.tensor is not None and not _same(a.tensor, b.tensor):
                return f"{a.path}: not equal bit for bit"
    return None


def _require_restored(model: nn.Module, state: dict[str, int], attributes: list[str]) -> None:
    now = {key: id(value) for key, value in model.state_dict(keep_vars=True).items()}
    if now != state:
        raise _WrongError("after unpatching: parameters or buffers are not the ones there were")
    if patch_of(model) is not None or sorted(model.__dict__) != attributes:
        raise _WrongError(f"after unpatching: left in the model: {set(model.__dict__) ^ set(attributes)}")


def _meaning(stage: str, error: Exception) -> tuple[str, str]:
    """Return the outcome that an exception means: a model that does not build or run alone is no failure of ours."""
    said = " ".join(f"{error}".split())[:400] or "no message"
    why = said if isinstance(error, HotswapError) else f"{type(error).__name__}: {said}"
    refused = isinstance(error, SpecError | EnvironmentMissing | InputError | ResourceExhausted)
    if stage == "build" and (refused or isinstance(error, ModelRaised)):
        return "not built", why
    if stage == "eager":
        return "not built", f"it does not run in eager: {why}"
    return ("not extractable" if refused else "failed"), why


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    sparse = one.layout is not torch.strided
    return same_values(one.to_dense(), other.to_dense()) if sparse else same_values(one, other)
