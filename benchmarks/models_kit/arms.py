"""What races in a row of the suite: the model in eager, under torch.compile's modes, with Liger, and with hotswap."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hotswap.integrator.graph_way import GraphWay
from hotswap.integrator.measure import compiled_arm, model_arm
from hotswap.integrator.results import Tail
from hotswap.integrator.swap_graph import Sites
from hotswap.integrator.winners import stored_winners
from hotswap.models.workload import Call

from .cached import stepping

COMPILE_MODES: dict[str, str | None] = {
    "compile": None,
    "reduce-overhead": "reduce-overhead",
    "max-autotune": "max-autotune",
}
LIGER = "liger"

# Calls before an arm is what it will be: graphs are captured when a layout comes again, torch's own at the third call.
_CALLS_TO_SETTLE = 4


@dataclass
class BuiltArm:
    """An arm ready to be called. compile_s: seconds of its first call. held_mb: device memory it keeps for itself.

    facts: what it did to the model, for the result file.
    """

    name: str
    call: Callable[[], Any]
    compile_s: float
    held_mb: float
    facts: dict[str, Any] = field(default_factory=dict)


def ours_name(tail: Tail) -> str:
    return f"ours ({tail})"


def build_arm(name: str, model: Any, call: Call, kernels: str) -> BuiltArm:
    """Return the arm `name`, called until nothing is compiled or captured any more. Raises what it raises."""
    held = _reserved_mb()
    start = time.perf_counter()
    facts: Callable[[], dict[str, Any]] = dict
    if name == "eager":
        run = stepping(call, model_arm(model, call))
    elif name in COMPILE_MODES:
        made = stepping(call, partial(compiled_arm, model, call, mode=COMPILE_MODES[name]))()
        run = stepping(call, made.call)
    elif name == LIGER:
        run = stepping(call, model_arm(_with_liger(model), call))
    else:
        tail: Any = name.removeprefix("ours (").removesuffix(")")
        way = GraphWay(model, stored_winners() if kernels == "store" else (), Sites(), tail)
        run = stepping(call, model_arm(way, call))
        facts = _facts_of(way)
    run()
    first = time.perf_counter() - start
    for _ in range(_CALLS_TO_SETTLE):
        run()
    return BuiltArm(name, run, first, max(0.0, _reserved_mb() - held), facts())


def _facts_of(way: GraphWay) -> Callable[[], dict[str, Any]]:
    def facts() -> dict[str, Any]:
        applied, left = way.rewritten
        rewrites: dict[str, int] = {}
        for one in applied:
            rewrites[one.rewrite] = rewrites.get(one.rewrite, 0) + 1
        return {
            "rewrites": rewrites,
            "attention": sorted({one.what for one in applied if one.rewrite == "attention-backend"}),
            "not_rewritten": sorted({f"{one.rewrite}: {one.reason}" for one in left})[:8],
            "captured": dict(way.captured),
            "swapped": sum(len(graph.swapped) for graph in way.graphs),
            "graphs": len(way.graphs),
        }

    return facts


def _with_liger(model: Any) -> Any:
    from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance  # type: ignore[import-not-found]

    patched = copy.deepcopy(model)
    _apply_liger_kernel_to_instance(model=patched)
    return patched


def _reserved_mb() -> float:
    if not torch.cuda.is_available():
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() / 2**20
