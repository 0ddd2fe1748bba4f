"""Swap in graphs: the model's whole forward is compiled by our backend, in one go and with guards."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..optimizer.winner import Winner
from .backend import SwapBackend
from .compiled_entry import UNTRACEABLE, Hooks, compiled_entry, first_line, hooks_inside, hooks_made
from .in_place import Forward
from .results import Tail
from .rewrites.parameter_packs import packs_of
from .rewrites.rewrite import Applied, NotApplied
from .swap_graph import GraphSwap, Sites
from .tails import COMPILING


class GraphWay:
    """One model's forward compiled with its winners, once for each combination the tail cannot switch by itself.

    untraceable: why Dynamo cannot follow the model at all, None while it can; the original runs then.
    """

    def __init__(self, model: nn.Module, winners: Sequence[Winner], sites: Sites, tail: Tail) -> None:
        self._model = model
        self._forward: Forward = model.forward
        self._winners = winners
        self._sites = sites
        self._tail: Tail = tail
        self._packs = packs_of(model)
        self._entries: dict[frozenset[str], tuple[SwapBackend, Forward]] = {}
        self._off: frozenset[str] = frozenset()
        self._dropped = 0
        self._seen_hooks = -1
        self._hooks: Hooks = frozenset()
        self.untraceable: str | None = None
        self.use(self._off)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.untraceable is not None:
            return self._forward(*args, **kwargs)
        if hooks_made() != self._seen_hooks:
            self._follow_hooks()
        try:
            return self._active(*args, **kwargs)
        except UNTRACEABLE as error:
            if self.compiles:
                raise  # a part of the model may have run already
            self.untraceable = first_line(error)
        return self._forward(*args, **kwargs)

    @property
    def graphs(self) -> Sequence[GraphSwap]:
        """What was done to each graph of the combination in use."""
        return self._backend.graphs

    @property
    def compiles(self) -> int:
        return self._dropped + sum(len(backend.graphs) for backend, _ in self._entries.values())

    @property
    def unswapped_calls(self) -> int:
        """How often graphs ran in which nothing is swapped."""
        return sum(backend.unswapped_calls for backend, _ in self._entries.values())

    @property
    def rewritten(self) -> tuple[Sequence[Applied], Sequence[NotApplied]]:
        """What rewrites have changed in the graphs of the combination in use, and what they could not."""
        return self._backend.rewritten, self._backend.not_rewritten

    @property
    def captured(self) -> Counter[str]:
        """How calls of captured graphs were answered: "replays", "captures", or why a call was not replayed."""
        return self._backend.captured()

    @property
    def waiting(self) -> bool:
        """Whether nothing could be asked yet: a graph is always captured at the first call."""
        return False

    def install(self) -> None:
        """Do nothing more: the model's own forward is the patch's to replace."""

    def remove(self) -> None:
        """Give packed parameters memory of their own again."""
        self._packs.restore()

    def use(self, off: frozenset[str]) -> None:
        """Run without the kernels of these fingerprints from now on."""
        # Most tails switch inside their graphs; what Inductor has fused has to be compiled for each combination.
        compiled_for = off if self._tail in COMPILING else frozenset[str]()
        if compiled_for not in self._entries:
            backend = SwapBackend(
                self._winners,
                tail=self._tail,
                sites=self._sites,
                off=off,
                hooked=_asked_weakly(self),
                packs=self._packs,
            )
            self._entries[compiled_for] = (backend, compiled_entry(self._forward, backend))
        self._off = off
        self._backend, self._active = self._entries[compiled_for]
        self._backend.off = off

    def _follow_hooks(self) -> None:
        """Compile anew where a hook has come to one of the model's modules since the last call.

        Dynamo would guard each module for it (config.skip_nnmodule_hook_guards = False, 3 us a module and call);
        torch counts all hooks ever registered, so one comparison a call tells. A removed hook fails Dynamo's guards.
        """
        self._seen_hooks = hooks_made()
        hooks = hooks_inside(self._model)
        if not hooks <= self._hooks:
            self._dropped = self.compiles
            self._entries.clear()
            self.use(self._off)
        self._hooks = hooks

    def _hooked(self) -> frozenset[int]:
        return frozenset(module for module, _, _ in self._hooks)


def _asked_weakly(way: GraphWay) -> Callable[[], frozenset[int]]:
    """Return what tells a backend the hooked modules without keeping the patch alive.

    Compiled code hangs on a code object, where Python's collector does not see it: a way back from there is a leak.
    """
    known = weakref.WeakMethod(way._hooked)

    def hooked() -> frozenset[int]:
        ask = known()
        return ask() if ask is not None else frozenset()

    return hooked
