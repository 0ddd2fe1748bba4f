"""The Dynamo backend: swap what has been won in each captured graph, rewrite it, hand the rest to a tail.

`torch.compile(model, backend="hotswap", options={"run": "runs/mine", "tail": "inductor"})`; without a run the store
of winners is used.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args

import torch
from torch import fx

from ..models.errors import SpecError
from ..optimizer.winner import Winner
from .program import Program
from .results import Engagement, Tail
from .rewrites.parameter_packs import ParameterPacks
from .rewrites.plan import SWITCHES, Forms, rewrite
from .rewrites.rewrite import Applied, NotApplied, Notes, Setting
from .swap_graph import GraphSwap, Sites, SwapPlan
from .tails import TRACING, Compiled, TailState
from .winners import load_winners, store_folder, stored_winners

logger = logging.getLogger(__name__)

TAILS: tuple[Tail, ...] = get_args(Tail)


class SwapBackend:
    """A backend for one model: remembers its sites and what it did to each graph.

    off: fingerprints and switches of rewrites that are left alone, for ablation. Where the tail compiles nothing it may
    be changed at any time and holds from the next call on; what Inductor has compiled stays. hooked: gives the ids of
    modules that have hooks. packs: where the model's parameters may be packed; None where nothing could undo it.
    within: path of the module whose graphs are captured next, "" for the whole model. unswapped_calls: how often graphs
    ran in which nothing is swapped.
    """

    def __init__(
        self,
        winners: Sequence[Winner],
        *,
        tail: Tail = "eager",
        sites: Sites | None = None,
        off: frozenset[str] = frozenset(),
        hooked: Callable[[], Collection[int]] = frozenset,
        packs: ParameterPacks | None = None,
    ) -> None:
        if tail not in TAILS:
            raise SpecError(f"tail {tail!r}: not known here; expected one of {', '.join(TAILS)}")
        self.winners = {w.fingerprint: w for w in winners}
        self.tail: Tail = tail
        self.sites = sites if sites is not None else Sites()
        self.off = off
        self.packs = packs
        self.within = ""
        self.unswapped_calls = 0
        self.graphs: list[GraphSwap] = []
        self.rewritten: list[Applied] = []
        self.not_rewritten: list[NotApplied] = []
        self.state = TailState(self.sites)
        self._hooked = hooked

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        plan = SwapPlan(gm, self.winners, self.sites, self._hooked(), traced=self.tail in TRACING, within=self.within)
        switched = _Switched(self, plan, example_inputs)
        self.graphs.append(switched.swap)
        said = Counter(one.rewrite for one in self.rewritten)
        logger.info(
            "graph %d: %d of %d regions swapped; rewritten so far: %s",
            len(self.graphs),
            len(switched.swap.swapped),
            switched.swap.regions,
            ", ".join(f"{name} {count}" for name, count in sorted(said.items())) or "nothing",
        )
        for left in switched.swap.left:
            logger.warning("%s: left alone at %s: %s", left.task, left.place, left.reason)
        return self._counted(switched, switched.swap)

    def _counted(self, run: Compiled, done: GraphSwap) -> Compiled:
        """Return `run`, its calls counted where nothing in its graph is swapped."""
        if done.swapped or self.off:
            return run

        def counted(*inputs: Any) -> Any:
            self.unswapped_calls += 1
            return run(*inputs)

        return counted

    def captured(self) -> Counter[str]:
        """Return how calls of captured graphs were answered: "replays", "captures", or why a call was not replayed."""
        found = Counter({"replays": 0, "captures": 0}) + self.state.refused
        for one in self.state.replays:
            found.update({"replays": one.replays, "captures": one.captures})
            found.update(one.fallbacks)
        return found


class _Switched:
    """A captured graph that runs as its backend's `off` says; each combination is made at its first call and kept."""

    def __init__(self, backend: SwapBackend, plan: SwapPlan, inputs: Sequence[Any]) -> None:
        self._backend = backend
        self._plan = plan
        # Real values only of what rewrites may pack. Activations must not be kept alive.
        self._weights = tuple(v if isinstance(v, torch.nn.Parameter) else None for v in inputs)
        self._symbolic = any(isinstance(v, torch.SymInt) for v in inputs)
        self._gradients = torch.is_grad_enabled() and any(
            isinstance(v, torch.Tensor) and v.requires_grad for v in inputs
        )
        self._variants: dict[frozenset[str], Compiled] = {}
        self._off = backend.off
        self._run, self.swap = self._make(backend.off, inputs)

    def __call__(self, *inputs: Any) -> Any:
        if self._off is not self._backend.off:
            self._off = self._backend.off
            self._run = self._variants.get(self._off) or self._make(self._off, inputs)[0]
        return self._run(*inputs)

    def _make(self, off: frozenset[str], inputs: Sequence[Any]) -> tuple[Compiled, GraphSwap]:
        backend, gradients = self._backend, self._gradients
        # Rewrites look into the ops they meet, which for ours is no call.
        tallies = {site: site.tally() for site in backend.sites}
        forms, done = self._rewritten(off)
        for site, tally in tallies.items():
            site.set_tally(tally)
        backend.rewritten += forms.notes.applied
        backend.not_rewritten += forms.notes.left
        made = Program(
            forms,
            backend.tail,
            inputs,
            backend.state,
            backend.packs,
            lambda: self._plan.variant(off | frozenset(SWITCHES))[0].forward,
            gradients=gradients,
        )
        self._variants[off] = made
        return made, done

    def _rewritten(self, off: frozenset[str]) -> tuple[Forms, GraphSwap]:
        """Return the graph with its swaps and rewrites; without any rewrite where one of them fails on it."""
        gm, done = self._plan.variant(off)
        try:
            return rewrite(gm, Setting(self._backend.packs, self._gradients, self._weights), off), done
        except Exception as error:  # rewrites run and time ops of torch and its libraries: the model must still answer
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            logger.exception("a rewrite failed on a graph, which runs without rewrites")
            gm, done = self._plan.variant(off | frozenset(SWITCHES))
            return Forms(gm, None, Notes([], [NotApplied("all", "the graph", f"one of them failed ({reason})")])), done


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

    options: "run" (a run or its directory; the store of winners if left out) and "tail" (one of TAILS). Parameters are
    not packed here, as nothing could give them back: `hotswap.patch` does that.
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
