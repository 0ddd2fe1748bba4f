"""Run a captured graph by memory plans, one for each layout of its inputs that comes again."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..models.trial import first_line
from .layouts import Layouts, layout
from .memory_plan import Arena, plan_memory

logger = logging.getLogger(__name__)


def why_not_planned(inputs: Sequence[Any], *, gradients: bool) -> str | None:
    """Return why no plan is made for a graph. inputs: real ones, or Dynamo's."""
    if gradients:
        return "the graph is differentiated"
    devices = {v.device.type for v in inputs if isinstance(v, torch.Tensor)}
    return None if devices == {"cpu"} else "memory is planned on a CPU only: on a GPU torch keeps what it has allocated"


class PlannedRuns:
    """A callable with the inputs and outputs of an FX graph that writes its intermediates into planned memory.

    A call that meets another at work in the same arena, its own thread's included, runs the graph as it is. So does
    one of a layout that is met for the first time, or whose graph cannot be lowered; `fallbacks` counts why.
    """

    def __init__(self, gm: fx.GraphModule, arena: Arena) -> None:
        self._gm = gm
        self._arena = arena
        self._plans: Layouts[Callable[..., Any]] = Layouts()
        self.replays = 0
        self.captures = 0
        self.fallbacks: Counter[str] = Counter()

    def __call__(self, *inputs: Any) -> Any:
        if not self._arena.lock.acquire(blocking=False):
            return self._plain(inputs, "another call is at work in the planned memory")
        try:
            found = self._ready(inputs)
            if isinstance(found, str):
                return self._plain(inputs, found)
            self.replays += 1
            return found(*inputs)
        finally:
            self._arena.lock.release()

    def _plain(self, inputs: tuple[Any, ...], reason: str) -> Any:
        self.fallbacks[reason] += 1
        return self._gm.forward(*inputs)

    def _ready(self, inputs: tuple[Any, ...]) -> Callable[..., Any] | str:
        key = (*layout(inputs), torch.is_autocast_enabled("cpu"))
        found = self._plans.get(key)
        if found is not None:
            return found
        reason = self._plans.why_not_now(key)
        if reason is not None:
            return reason
        try:
            plan = plan_memory(self._gm, inputs, self._arena)
        except Exception as error:  # tracing fails in as many ways as there are ops: the graph still runs as it is
            logger.warning("memory of a graph could not be planned; it runs without a plan: %s", error)
            return self._plans.give_up(key, f"no memory plan: {type(error).__name__}: {first_line(error)}")
        logger.info("memory plan: %d of %d results in %.1f MB", plan.planned, plan.ops, plan.bytes / 1e6)
        self.captures += 1
        return self._plans.keep(key, plan.run.forward)
