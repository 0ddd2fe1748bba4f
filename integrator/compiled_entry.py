"""Hand a forward to torch.compile in a way that leaves nothing behind: Dynamo keeps alive whatever it has seen."""

from __future__ import annotations

import builtins
import types
import weakref
from typing import Any

import torch
from torch import fx, nn
from torch.utils.hooks import RemovableHandle

from .backend import SwapBackend
from .in_place import Forward

# Dynamo met something in the user's code that it cannot trace at all, and says so before anything has run.
UNTRACEABLE = (torch._dynamo.exc.InternalTorchDynamoError, torch._dynamo.exc.Unsupported)

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")

Hooks = frozenset[tuple[int, str, int]]


def compiled_entry(forward: Forward, backend: SwapBackend) -> Forward:
    """Return `forward` compiled by `backend`; neither outlives its users, and its recompiles count for itself alone."""
    return torch.compile(_fresh_entry(forward), backend=_weakly(backend))


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "no message")


def hooks_made() -> int:
    """Return a number that changes whenever a hook is registered on any module of the process."""
    return RemovableHandle.next_id


def hooks_inside(model: nn.Module) -> Hooks:
    """Return the hooks on the modules below `model`, each by its module's id, its kind and its key.

    A hook for all modules of the process is one on each of them.
    """
    everywhere = [(kind, key) for kind in _HOOKS for key in getattr(nn.modules.module, f"_global{kind}")]
    return frozenset(
        (id(m), kind, key)
        for m in model.modules()
        if m is not model
        for kind, key in (*((kind, key) for kind in _HOOKS for key in getattr(m, kind)), *everywhere)
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


def _weakly(backend: SwapBackend) -> Forward:
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
