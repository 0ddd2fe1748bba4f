"""Put winners into a live model and take them out again: this instance only, and exactly.

Two ways. "graph": `forward` on the instance becomes one compiled with the winners; "module": modules whose forward is
a won region get a forward of their own, and the model stays in plain eager. The class, other instances, parameters and
keys are not touched. A pickle or deepcopy of a patched model is the unpatched model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import nn

from ..models.errors import SpecError, VerificationFailed
from .graph_way import GraphWay
from .in_place import InPlace, owner_of
from .module_way import ModuleWay
from .results import Engagement, Tail
from .rewrites.choice import FILE, rewrites_off
from .rewrites.plan import SWITCHES
from .rewrites.rewrite import PREFIX
from .swap_graph import GraphSwap, Sites
from .winners import RunLike, chosen_tail, chosen_way, load_winners, run_folder

Way = Literal["graph", "module"]


class Patch:
    """Winners at work in one model. Made by `patch`; speaks for what was swapped and what has run."""

    def __init__(
        self, model: nn.Module, run: RunLike, tail: Tail | None, way: Way = "graph", *, bare: bool = False
    ) -> None:
        """Raise SpecError where the run has nothing to put in; bare: not where it may be rewrites alone."""
        if way not in get_args(Way):
            raise SpecError(f"way {way!r}: not known here; expected one of {', '.join(get_args(Way))}")
        self.winners = load_winners(run)
        self.tail: Tail = tail or ("eager" if way == "module" else chosen_tail(run))
        self.way: Way = way
        self.sites = Sites()
        self._model = model
        self._off: frozenset[str] = rewrites_off(run_folder(run))
        self._told: set[str] = set()
        self._unseen = True
        kernels = [w for w in self.winners if w.choice == "kernel"]
        # A run without kernels may still have won by rewrites; then it has written which.
        bare = bare or ((run_folder(run) / FILE).exists() and not SWITCHES.keys() <= self._off)
        if not kernels and self.tail == "eager" and not bare:
            raise SpecError(
                f"run {run!s}: none of its {len(self.winners)} tasks ended with a kernel; there is nothing to patch in"
            )
        self._placed = InPlace(model, self, self, self._name)
        self._way = (GraphWay if way == "graph" else ModuleWay)(model, self.winners, self.sites, self.tail)
        self._way.use(self._off)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the patched forward."""
        result = self._way(*args, **kwargs)
        if self._unseen and not self._way.waiting:
            self._look()
        return result

    @property
    def swaps(self) -> tuple[GraphSwap, ...]:
        """What was done to each graph when it was captured."""
        return tuple(self._way.graphs)

    @property
    def compiles(self) -> int:
        """How many graphs have been captured and compiled."""
        return self._way.compiles

    @property
    def unswapped_calls(self) -> int:
        """How often graphs ran in which nothing is swapped: another dtype or device is another region, of no winner."""
        return self._way.unswapped_calls

    @property
    def rewritten(self) -> frozenset[str]:
        """The switches of the rewrites that have changed a graph; none where modules are swapped."""
        applied = self._way.rewritten[0] if isinstance(self._way, GraphWay) else ()
        return frozenset(PREFIX + one.rewrite for one in applied)

    def engagement(self) -> tuple[Engagement, ...]:
        """Return, for each kernel of the run, how often it ran and how often the original ops answered instead."""
        met = {site.winner.fingerprint: site.engagement() for site in self.sites}
        kernels = [w for w in self.winners if w.choice == "kernel"]
        return tuple(met.get(w.fingerprint, Engagement(w.task, 0, 0, 0, {})) for w in kernels)

    def require_engaged(self) -> None:
        """Raise VerificationFailed unless a kernel has run: a patch that never ran proves nothing."""
        if not any(e.kernel_calls for e in self.engagement()):
            raise VerificationFailed(
                f"{self._name}: patched, but {self._why_idle()}; "
                "call the model under torch.no_grad(), at the sizes of the run"
            )

    def enable(self, fingerprint: str, on: bool) -> None:
        """Switch one swap on or off. What a combination needs is made at its first call and kept: toggling is free."""
        known = {w.fingerprint for w in self.winners} | SWITCHES.keys()
        if fingerprint not in known:
            raise SpecError(f"fingerprint {fingerprint!r}: not in this patch; it has {', '.join(sorted(known))}")
        self._off = self._off - {fingerprint} if on else self._off | {fingerprint}
        self._way.use(self._off)
        self._unseen = "idle" not in self._told

    @property
    def _name(self) -> str:
        return type(self._model).__name__

    def _look(self) -> None:
        """After the first call, say once if nothing was swapped."""
        self._unseen = False
        kernels = any(w.choice == "kernel" for w in self.winners)
        if kernels and not self._off - SWITCHES.keys() and not any(g.swapped for g in self.swaps):
            self._told.add("idle")
            warnings.warn(f"hotswap: {self._name} is patched, but {self._why_idle()}", stacklevel=4)

    def _why_idle(self) -> str:
        cause = f" (Dynamo cannot follow it: {self._way.untraceable})" if self._way.untraceable else ""
        if not self.compiles:
            return f"no graph of it was captured{cause}, so nothing was swapped"
        if not any(g.swapped for g in self.swaps):
            regions = sum(g.regions for g in self.swaps)
            reasons = sorted({f"{left.task}: {left.reason}" for g in self.swaps for left in g.left})
            return "; ".join(reasons) or f"none of its {regions} regions is one the run has a kernel for{cause}"
        reasons = sorted({reason for e in self.engagement() for reason in e.fallback_reasons})
        return f"no kernel has run ({'; '.join(reasons) or 'not called yet'})"

    @contextmanager
    def installed(self) -> Iterator[Patch]:
        """A context in which the model runs with this patch; afterwards it is exactly what it was."""
        _check_patchable(self._model, self.way)
        self._install()
        try:
            yield self
        finally:
            self._remove()

    def _install(self) -> None:
        self._way.install()
        self._placed.put()

    def _remove(self) -> None:
        self._placed.take_out()
        self._way.remove()


def patch(model: nn.Module, run: RunLike, *, tail: Tail | None = None, way: Way | None = None) -> Patch:
    """Put a run's winners into `model`, in place, and return the Patch; `unpatch` undoes it.

    Graphs are compiled at the first call of each kind. tail: what runs the rest of each graph; by default what the run
    measured as best. way: "module" replaces only modules whose whole forward a kernel computes, and leaves all else in
    plain eager, as a debugger or a model that Dynamo cannot follow needs it; by default the way the run was captured.
    """
    way = way or chosen_way(run)
    _check_patchable(model, way)
    made = Patch(model, run, tail, way)
    made._install()
    return made


def unpatch(model: nn.Module) -> None:
    """Take the winners out of `model`: it is exactly what it was. Raise SpecError where it is not patched."""
    found = patch_of(model)
    if found is None:
        raise SpecError(
            f"{type(model).__name__}: not patched, nothing to take out; expected a model given to hotswap.patch"
        )
    found._remove()
    # Compiled graphs live until Dynamo lets them go; what they packed need not.
    for site in found.sites:
        site.drop_packed()


def patch_of(model: nn.Module) -> Patch | None:
    """Return the patch in `model`, None where there is none."""
    found = owner_of(model)
    return found if isinstance(found, Patch) else None


@contextmanager
def patched(model: nn.Module, run: RunLike, *, tail: Tail | None = None, way: Way | None = None) -> Iterator[Patch]:
    """A context in which `model` is patched."""
    way = way or chosen_way(run)
    _check_patchable(model, way)
    with Patch(model, run, tail, way).installed() as made:
        yield made


def _check_patchable(model: nn.Module, way: Way) -> None:
    name = type(model).__name__
    if isinstance(model, torch._dynamo.OptimizedModule):
        raise SpecError(
            f"{name}: already wrapped by torch.compile; patch the model inside, or compile it with backend='hotswap'"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise SpecError(
            f"{name}: a TorchScript module, which Dynamo does not capture; patch the Python model it was made from"
        )
    if owner_of(model) is not None:
        raise SpecError(f"{name}: already patched; call hotswap.unpatch(model) first")
    if way == "module":
        return  # offloaded modules are left alone one by one
    away = next((key for key, p in model.named_parameters() if p.device.type == "meta"), None)
    if away is not None:
        raise SpecError(
            f"{name}: parameter {away!r} is on the meta device (offloaded?); load the weights before patching, "
            "or patch with way='module', which leaves such modules alone"
        )
