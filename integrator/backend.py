"""The Dynamo backend: swap what has been won in each captured graph, hand the rest to a tail.

`torch.compile(model, backend="hotswap", options={"run": "runs/mine", "tail": "inductor"})`; without a run the store
of winners is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args

from torch import fx

from ..models.errors import SpecError
from ..optimizer.winner import Winner
from .results import Engagement, Tail
from .swap_graph import GraphSwap, Sites, SwapPlan
from .winners import load_winners, store_folder, stored_winners

logger = logging.getLogger(__name__)

Compiled = Callable[..., Any]
TAILS: tuple[Tail, ...] = get_args(Tail)


class SwapBackend:
    """A backend for one model: remembers its sites and what it did to each graph.

    off: fingerprints that are left alone, for ablation. Under the eager tail it may be changed at any time and holds
    from the next call on; what another tail has compiled stays. hooked: gives the ids of modules that have hooks.
    """

    def __init__(
        self,
        winners: Sequence[Winner],
        *,
        tail: Tail = "eager",
        sites: Sites | None = None,
        off: frozenset[str] = frozenset(),
        hooked: Callable[[], Collection[int]] = frozenset,
    ) -> None:
        if tail not in TAILS:
            raise SpecError(f"tail {tail!r}: not known here; expected one of {', '.join(TAILS)}")
        self.winners = {w.fingerprint: w for w in winners}
        self.tail: Tail = tail
        self.sites = sites if sites is not None else Sites()
        self.off = off
        self.graphs: list[GraphSwap] = []
        self._hooked = hooked

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        plan = SwapPlan(gm, self.winners, self.sites, self._hooked(), traced=self.tail != "eager")
        if self.tail == "inductor":
            from torch._inductor.compile_fx import compile_fx

            self._note(plan.apply(self.off))
            compiled: Compiled = compile_fx(gm, list(example_inputs))  # type: ignore[assignment]
            return compiled
        switched = _Switched(self, plan)
        self._note(switched.swap)
        return switched

    def _note(self, done: GraphSwap) -> None:
        self.graphs.append(done)
        logger.info("graph %d: %d of %d regions swapped", len(self.graphs), len(done.swapped), done.regions)
        for left in done.left:
            logger.warning("%s: left alone at %s: %s", left.task, left.place, left.reason)


class _Switched:
    """A captured graph that runs as its backend's `off` says; each combination is made at its first call and kept."""

    def __init__(self, backend: SwapBackend, plan: SwapPlan) -> None:
        self._backend = backend
        self._plan = plan
        self._variants: dict[frozenset[str], Compiled] = {}
        self._off = backend.off
        self._run, self.swap = self._make(backend.off)

    def __call__(self, *inputs: Any) -> Any:
        if self._off is not self._backend.off:
            self._off = self._backend.off
            self._run = self._variants[self._off] if self._off in self._variants else self._make(self._off)[0]
        return self._run(*inputs)

    def _make(self, off: frozenset[str]) -> tuple[Compiled, GraphSwap]:
        gm, done = self._plan.variant(off)
        self._variants[off] = gm.forward
        return gm.forward, done


# Winners are read anew for each graph, sites live as long as the process: compiled graphs outlive objects of ours.
_process_sites = Sites()


def hotswap(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """Swap and compile one captured graph: what `torch.compile(..., backend="hotswap")` calls.

    options: "run" (a run or its directory; the store of winners if left out) and "tail" ("eager" or "inductor").
    """
    chosen = dict(options or {})
    if mode not in (None, "default"):
        raise SpecError(f"mode {mode!r}: backend 'hotswap' has none; expected options={{'run': ..., 'tail': ...}}")
    run, tail = chosen.pop("run", None), chosen.pop("tail", "eager")
    if chosen:
        raise SpecError(f"option {min(chosen)!r}: unknown to backend 'hotswap'; expected 'run' and 'tail'")
    winners = load_winners(run) if run is not None else stored_winners()
    if not winners:
        logger.warning(
            "backend 'hotswap': the store %s holds no winners; everything runs its original ops", store_folder()
        )
    return SwapBackend(winners, tail=tail, sites=_process_sites)(gm, example_inputs)


def engagement() -> tuple[Engagement, ...]:
    """Return what the sites of all models compiled with `backend="hotswap"` have done in this process."""
    return tuple(site.engagement() for site in _process_sites)
