"""Swap modules: where a won kernel computes a module's whole forward, that instance's forward is replaced.

All else stays plain eager, so this also serves models that cannot be captured whole. Whether a module is such a one is
decided at its first call, from the graph of that module alone; if not, its own forward is back before the call ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from ..extractor.node_ops import NodeKind, example, node_kinds
from ..extractor.regions import find_regions
from ..models.errors import SpecError
from ..optimizer.winner import Winner
from .backend import SwapBackend
from .compiled_entry import UNTRACEABLE, compiled_entry, first_line, hooks_inside, hooks_made
from .in_place import Forward, InPlace, owner_of, tracing_ours
from .kernel_site import NEEDS_GRAD, KernelSite
from .ops import looked_on
from .results import Tail
from .swap_graph import GraphSwap, LeftAlone, Sites

logger = logging.getLogger(__name__)

_PLAIN = (bool, int, float, str, type(None))

# A call that gives no graph (Dynamo switched off, say) decides nothing; after as many the module is left alone.
_TRIES = 3


class ModuleWay:
    """The modules of one model that a kernel may stand for, each asked at its first call."""

    def __init__(self, model: nn.Module, winners: Sequence[Winner], sites: Sites, tail: Tail) -> None:
        if tail != "eager":
            raise SpecError(f"tail {tail!r}: way='module' leaves the rest in plain eager; expected tail='eager'")
        self._model = model
        self._forward: Forward = model.forward
        self.backend = _WholeGraphs(winners, sites=sites)
        self.sites = sites
        self.unlike: set[object] = set()
        self.passed_on = False
        self.untraceable: str | None = None
        self._left: list[LeftAlone] = []
        self._root: _Place | None = None
        self._places: list[_Place] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._root(*args, **kwargs) if self._root is not None else self._forward(*args, **kwargs)

    @property
    def graphs(self) -> Sequence[GraphSwap]:
        """What was done to each module's graph; last, which modules could not even be asked."""
        return [*self.backend.graphs, *([GraphSwap((), tuple(self._left), 0)] if self._left else [])]

    @property
    def compiles(self) -> int:
        return self.backend.asked

    @property
    def unswapped_calls(self) -> int:
        """How often modules that a kernel stood for once ran graphs in which nothing is swapped."""
        return self.backend.unswapped_calls

    @property
    def waiting(self) -> bool:
        """Whether nothing could be asked yet, because all calls so far needed gradients."""
        return self.passed_on and not self.backend.asked

    def use(self, off: frozenset[str]) -> None:
        """Run without the kernels of these fingerprints from now on."""
        self.backend.off = off

    def install(self) -> None:
        """Put a forward into every module that may turn out to be a kernel's whole work."""
        for path, module in self._model.named_modules():
            if not _may_be_one_region(module):
                continue
            reason = _not_ours(module)
            if reason is not None:
                self._left.append(LeftAlone(path, "", path, reason))
            elif module is self._model:
                self._root = _Place(self, module, path)
            else:
                place = _Place(self, module, path)
                place.placed = InPlace(module, place, self, type(self._model).__name__)
                place.placed.put()
                self._places.append(place)

    def remove(self) -> None:
        """Take all of them out again."""
        for place in self._places:
            place.leave()
        self._places.clear()
        self._root = None


class _Place:
    """One module's forward: asked at the first call, then the kernel's or none at all."""

    def __init__(self, way: ModuleWay, module: nn.Module, path: str) -> None:
        self._way = way
        self._path = path
        self._module = module
        self._original: Forward = module.forward
        self._compiled: Forward | None = None
        self._decided = False
        self._tries = 0
        self._sites: list[KernelSite] = []
        self._inner = next(module.children(), None) is not None
        self._seen_hooks = -1
        self._hooked = False
        self.placed: InPlace | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # Under a transform or fake tensors nothing is to be learnt and no memory to be read.
        if looked_on() or (self._decided and self._compiled is None) or (self._inner and self._hooks_came()):
            return self._original(*args, **kwargs)
        if torch.is_grad_enabled() and self._needs_grad(args, kwargs):
            return self._pass_on(args, kwargs)
        if not self._decided:
            return self._decide(args, kwargs)
        assert self._compiled is not None
        self._way.backend.within = self._path
        with self._quiet():
            return self._compiled(*args, **kwargs)

    def leave(self) -> None:
        """Give the module its own forward back, for good."""
        self._decided, self._compiled = True, None
        if self.placed is not None:
            self.placed.take_out()

    def _decide(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        likeness = _likeness(self._module, args, kwargs)
        if likeness in self._way.unlike:
            self.leave()
            return self._original(*args, **kwargs)
        backend = self._way.backend
        backend.verdicts.clear()
        before = len(backend.graphs)
        compiled = compiled_entry(self._original, backend)
        backend.within, backend.deciding = self._path, True
        try:
            with self._quiet():
                result = compiled(*args, **kwargs)
        except UNTRACEABLE as error:
            if backend.verdicts:
                raise  # a part of the module may have run already
            self._way.untraceable = first_line(error)
            self._give_up(likeness)
            return self._original(*args, **kwargs)
        finally:
            backend.deciding = False
        self._tries += 1
        if backend.verdicts and all(backend.verdicts):
            self._decided, self._compiled = True, compiled
            won = {swap.fingerprint for done in backend.graphs[before:] for swap in done.swapped}
            self._sites = [site for site in self._way.sites if site.winner.fingerprint in won]
        elif backend.verdicts or self._tries >= _TRIES:
            self._give_up(likeness)
        return result

    def _give_up(self, likeness: object) -> None:
        self._way.unlike.add(likeness)
        self.leave()

    def _needs_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        given = (*args, *kwargs.values())
        if any(isinstance(value, torch.Tensor) and value.requires_grad for value in given):
            return True
        return any(p.requires_grad for p in self._module.parameters())

    def _pass_on(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the original, which has gradients, without a word to Dynamo: it would compile once more for nothing."""
        self._way.passed_on = True
        for site in self._sites:
            site.fallbacks[NEEDS_GRAD] += 1
        return self._original(*args, **kwargs)

    def _quiet(self) -> Any:
        return tracing_ours() if self._inner else nullcontext()

    def _hooks_came(self) -> bool:
        """Whether a module inside has hooks now: they must fire, so the original runs."""
        if hooks_made() != self._seen_hooks or self._hooked:
            self._seen_hooks = hooks_made()
            self._hooked = bool(hooks_inside(self._module))
        return self._hooked


class _WholeGraphs(SwapBackend):
    """Swaps only graphs whose work is won throughout. verdicts: whether each graph since it was cleared was one.

    deciding: whether the module that is compiled is still being asked.
    """

    def __init__(self, winners: Sequence[Winner], *, sites: Sites) -> None:
        super().__init__(winners, tail="eager", sites=sites)
        self.verdicts: list[bool] = []
        self.asked = 0
        self.deciding = False

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.asked += 1
        if not self._won_throughout(gm):
            self.verdicts.append(False)
            return gm.forward if self.deciding else self._counted(gm.forward, GraphSwap((), (), len(find_regions(gm))))
        before = len(self.graphs)
        run = super().__call__(gm, example_inputs)
        self.verdicts.append(not any(done.left for done in self.graphs[before:]))
        return run

    def _won_throughout(self, gm: fx.GraphModule) -> bool:
        won = {
            node
            for region in find_regions(gm)
            if (winner := self.winners.get(region.fingerprint)) is not None and winner.choice == "kernel"
            for node in region.nodes
        }
        return bool(won) and all(node in won or _moves_nothing(node, kind) for node, kind in node_kinds(gm).items())


def _moves_nothing(node: fx.Node, kind: NodeKind) -> bool:
    if kind in (NodeKind.VIEW, NodeKind.IDENTITY):
        return True
    # Sizes and sums of sizes; what has no value at all may switch a mode.
    value = example(node)
    return value is not None and not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))


def _may_be_one_region(module: nn.Module) -> bool:
    """Whether it is worth asking: a region holds at most one matmul, so a module of two matrices is none."""
    if isinstance(module, torch.jit.ScriptModule) or type(module).forward is nn.Module.forward:
        return False  # a container, never called itself
    return sum(1 for p in module.parameters() if p.ndim > 1) <= 1


def _not_ours(module: nn.Module) -> str | None:
    """Return why this module's forward may not be replaced, None where it may."""
    if isinstance(module, torch.jit.ScriptModule | torch._dynamo.OptimizedModule) or module._compiled_call_impl:
        return "it is compiled already"
    if owner_of(module) is not None:
        return "it is patched already"
    if "forward" in module.__dict__:
        return "somebody else has replaced its forward (an offload hook?)"
    if any(p.device.type == "meta" for p in module.parameters()):
        return "its weights are on the meta device (offloaded?)"
    return None


def _likeness(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Return what equal modules called alike have in common: what is no region for one is asked once for all of them.

    A wrong "alike" costs a kernel's place and never an answer.
    """
    given = tuple(
        (leaf.dtype, leaf.ndim, leaf.device.type) if isinstance(leaf, torch.Tensor) else type(leaf)
        for leaf in tree_leaves((args, kwargs))
    )
    return (given, tuple(_facts(module)))


def _facts(module: nn.Module) -> Iterator[object]:
    for path, inner in module.named_modules():
        yield path, type(inner)
        yield from ((k, v) for k, v in inner.__dict__.items() if isinstance(v, _PLAIN))
        yield from ((k, p.dtype, p.shape) for k, p in inner.named_parameters(recurse=False))
