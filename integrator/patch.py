"""Put winners into a live model and take them out again: this instance only, and exactly.

`forward` on the instance becomes a compiled one; the class, other instances, submodules, parameters and keys are not
touched. A pickle or deepcopy of a patched model is the unpatched model.
"""

from __future__ import annotations

import builtins
import functools
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch.utils.hooks import RemovableHandle

from ..models.errors import SpecError, VerificationFailed
from .backend import SwapBackend
from .results import Engagement, Tail
from .swap_graph import GraphSwap, Sites
from .winners import RunLike, chosen_tail, load_winners

Forward = Callable[..., Any]

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")

# What a patch puts into the instance's __dict__, and unpatch takes out.
_OURS = ("forward", "__reduce_ex__")


class Patch:
    """Winners at work in one model. Made by `patch`; speaks for what was swapped and what has run."""

    def __init__(self, model: nn.Module, run: RunLike, tail: Tail | None) -> None:
        self.winners = load_winners(run)
        self.tail: Tail = tail or chosen_tail(run)
        self.sites = Sites()
        self._model = model
        self._forward: Forward = model.forward
        self._before = {key: model.__dict__[key] for key in _OURS if key in model.__dict__}
        self._off: frozenset[str] = frozenset()
        self._entries: dict[frozenset[str], tuple[SwapBackend, Forward]] = {}
        self._dropped = 0
        self._handles = -1
        self._hooks: frozenset[tuple[int, str, int]] = frozenset()
        self._told: set[str] = set()
        kernels = [w for w in self.winners if w.choice == "kernel"]
        if not kernels and self.tail == "eager":
            raise SpecError(
                f"run {run!s}: none of its {len(self.winners)} tasks ended with a kernel; there is nothing to patch in"
            )
        self._use(self._off)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the patched forward."""
        if RemovableHandle.next_id != self._handles:
            self._follow_hooks()
        result = self._active(*args, **kwargs)
        if self._unseen:
            self._look()
        return result

    @property
    def swaps(self) -> tuple[GraphSwap, ...]:
        """What was done to each graph when it was captured."""
        return tuple(self._backend.graphs)

    @property
    def compiles(self) -> int:
        """How many graphs have been captured and compiled."""
        return self._dropped + sum(len(backend.graphs) for backend, _ in self._entries.values())

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
        known = {w.fingerprint for w in self.winners}
        if fingerprint not in known:
            raise SpecError(f"fingerprint {fingerprint!r}: not in this patch; it has {', '.join(sorted(known))}")
        self._use(self._off - {fingerprint} if on else self._off | {fingerprint})

    def _use(self, off: frozenset[str]) -> None:
        # The eager tail switches inside its graphs; what Inductor has fused has to be compiled for each combination.
        compiled_for = frozenset[str]() if self.tail == "eager" else off
        if compiled_for not in self._entries:
            backend = SwapBackend(self.winners, tail=self.tail, sites=self.sites, off=off, hooked=_asked_weakly(self))
            self._entries[compiled_for] = (
                backend,
                torch.compile(_fresh_entry(self._forward), backend=_weakly(backend)),
            )
        self._off = off
        self._backend, self._active = self._entries[compiled_for]
        self._backend.off = off
        self._unseen = "idle" not in self._told

    def _follow_hooks(self) -> None:
        """Compile anew where a hook has come to one of the model's modules since the last call.

        Dynamo would guard each module for it (config.skip_nnmodule_hook_guards = False, 3 us a module and call);
        torch counts all hooks ever registered, so one comparison a call tells. A removed hook fails Dynamo's guards.
        """
        self._handles = RemovableHandle.next_id
        hooks = frozenset(
            (id(m), kind, key)
            for m in self._model.modules()
            for kind in _HOOKS
            for key in getattr(m, kind)
            if m is not self._model
        )
        if not hooks <= self._hooks:
            self._dropped = self.compiles
            self._entries.clear()
            self._use(self._off)
        self._hooks = hooks

    def _hooked(self) -> frozenset[int]:
        return frozenset(module for module, _, _ in self._hooks)

    @property
    def _name(self) -> str:
        return type(self._model).__name__

    def _look(self) -> None:
        """After the first call, say once if nothing was swapped."""
        self._unseen = False
        if not self._off and not any(g.swapped for g in self.swaps):
            self._told.add("idle")
            warnings.warn(f"hotswap: {self._name} is patched, but {self._why_idle()}", stacklevel=4)

    def _why_idle(self) -> str:
        if not self.compiles:
            return "no graph of it was captured, so nothing was swapped"
        if not any(g.swapped for g in self.swaps):
            regions = sum(g.regions for g in self.swaps)
            reasons = sorted({f"{left.task}: {left.reason}" for g in self.swaps for left in g.left})
            return (
                f"none of its {regions} regions is one the run has a kernel for" if not reasons else "; ".join(reasons)
            )
        reasons = sorted({reason for e in self.engagement() for reason in e.fallback_reasons})
        return f"no kernel has run ({'; '.join(reasons) or 'not called yet'})"

    @contextmanager
    def installed(self) -> Iterator[Patch]:
        """A context in which the model runs with this patch; afterwards it is exactly what it was."""
        _check_patchable(self._model)
        self._install()
        try:
            yield self
        finally:
            self._remove()

    def _install(self) -> None:
        self._model.__dict__["forward"] = _instance_forward(self)
        self._model.__dict__["__reduce_ex__"] = functools.partial(_reduce_unpatched, self)

    def _remove(self) -> None:
        for key in _OURS:
            if key in self._before:
                self._model.__dict__[key] = self._before[key]
            else:
                self._model.__dict__.pop(key, None)


def patch(model: nn.Module, run: RunLike, *, tail: Tail | None = None) -> Patch:
    """Put a run's winners into `model`, in place, and return the Patch; `unpatch` undoes it.

    Graphs are compiled at the first call of each kind. tail: what runs the rest of each graph; by default what the run
    measured as best.
    """
    _check_patchable(model)
    made = Patch(model, run, tail)
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
    reduce = model.__dict__.get("__reduce_ex__")
    if isinstance(reduce, functools.partial) and reduce.func is _reduce_unpatched:
        found = reduce.args[0]
        return found if isinstance(found, Patch) else None
    return None


@contextmanager
def patched(model: nn.Module, run: RunLike, *, tail: Tail | None = None) -> Iterator[Patch]:
    """A context in which `model` is patched."""
    _check_patchable(model)
    with Patch(model, run, tail).installed() as made:
        yield made


def _check_patchable(model: nn.Module) -> None:
    name = type(model).__name__
    if isinstance(model, torch._dynamo.OptimizedModule):
        raise SpecError(
            f"{name}: already wrapped by torch.compile; patch the model inside, or compile it with backend='hotswap'"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise SpecError(
            f"{name}: a TorchScript module, which Dynamo does not capture; patch the Python model it was made from"
        )
    if patch_of(model) is not None:
        raise SpecError(f"{name}: already patched; call hotswap.unpatch(model) first")
    away = next((key for key, p in model.named_parameters() if p.device.type == "meta"), None)
    if away is not None:
        raise SpecError(
            f"{name}: parameter {away!r} is on the meta device (offloaded?); load the weights before patching"
        )


def _fresh_entry(forward: Forward) -> Forward:
    """Return a function that calls `forward` and has a code object and globals of its own.

    Dynamo keeps its compiled frames, and counts them against its recompile limit, by code object: that of a class's
    forward is shared by all instances, and patching eight of them would silently end in eager. What it compiled it
    keeps in the globals, which must be able to go.
    """

    def entry(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return types.FunctionType(
        entry.__code__.replace(), {"__name__": __name__, "__builtins__": builtins}, "forward", None, entry.__closure__
    )


def _asked_weakly(made: Patch) -> Callable[[], frozenset[int]]:
    """Return what tells a backend the hooked modules without keeping the patch alive.

    Compiled code hangs on a code object, where Python's collector does not see it: a way back from there is a leak.
    """
    known = weakref.WeakMethod(made._hooked)

    def hooked() -> frozenset[int]:
        ask = known()
        return ask() if ask is not None else frozenset()

    return hooked


def _weakly(backend: SwapBackend) -> Callable[[fx.GraphModule, list[Any]], Forward]:
    """Return a backend that does not keep `backend` alive.

    Dynamo holds every backend it has seen until it is reset, and ours knows the model and its packed weights.
    """
    known = weakref.ref(backend)

    def compile_graph(gm: fx.GraphModule, example_inputs: list[Any]) -> Forward:
        found = known()
        if found is None:
            raise RuntimeError("hotswap: a patched forward outlived its patch; take it from the model again")
        return found(gm, example_inputs)

    return compile_graph


def _instance_forward(made: Patch) -> Forward:
    """Return what becomes the instance's `forward`: the signature and name of the original, whatever it was."""
    original, name = made._forward, made._name

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            _tell_inlined(name)
            return original(*args, **kwargs)
        return made(*args, **kwargs)

    return forward


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _tell_inlined(name: str) -> None:
    """Say, once a model class, that an outer compile sees the original ops. Runs while Dynamo traces, not after."""
    if name not in _inlined:
        _inlined.add(name)
        warnings.warn(
            f"hotswap: {name} is patched, but an outer torch.compile inlines it and its kernels are not used; "
            "compile it with backend='hotswap'",
            stacklevel=2,
        )


_inlined: set[str] = set()


def _reduce_unpatched(made: Patch, protocol: Any) -> Any:
    """Pickle and copy as the model without the patch: what `__reduce_ex__` of its class gives, less what we put in."""
    model = made._model
    reduced = type(model).__reduce_ex__(model, protocol)
    if isinstance(reduced, str) or len(reduced) < 3:
        return reduced
    return (*reduced[:2], _without_ours(reduced[2], made._before), *reduced[3:])


def _without_ours(state: Any, before: dict[str, Any]) -> Any:
    if isinstance(state, dict):
        return {k: before.get(k, v) for k, v in state.items() if k in before or k not in _OURS}
    if isinstance(state, tuple) and state and isinstance(state[0], dict):
        return (_without_ours(state[0], before), *state[1:])
    return state
