"""Replace `forward` on one module instance and take it back exactly; copies and pickles are without it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

Forward = Callable[..., Any]

# What stands in the instance's __dict__ while `forward` is replaced.
_OURS = ("forward", "__reduce_ex__", "get_compiled_call")


class InPlace:
    """A `forward` for one module instance: `put` it in, `take_out` leaves the instance as it was.

    original: the module's forward, whatever it was. Under an outer torch.compile it is what runs, and that is said
    once a name. owner: what `owner_of` finds.
    """

    def __init__(self, module: nn.Module, forward: Forward, owner: object, name: str) -> None:
        self.module = module
        self.owner = owner
        self.original: Forward = module.forward
        self._before = {key: module.__dict__[key] for key in _OURS if key in module.__dict__}
        self._forward = _traceable(self.original, forward, name)

    def put(self) -> None:
        self.module.__dict__["forward"] = self._forward
        self.module.__dict__["__reduce_ex__"] = functools.partial(_reduce_without, self)
        if hasattr(self.module, "get_compiled_call"):
            # transformers' generate compiles each step over a static cache, which would inline the patch away.
            self.module.__dict__["get_compiled_call"] = functools.partial(_uncompiled, self)

    def take_out(self) -> None:
        for key in _OURS:
            if key in self._before:
                self.module.__dict__[key] = self._before[key]
            else:
                self.module.__dict__.pop(key, None)

    def without(self, state: Any) -> Any:
        """Return what `__reduce_ex__` gave as the instance's state, less what we put in."""
        if isinstance(state, dict):
            return {k: self._before.get(k, v) for k, v in state.items() if k in self._before or k not in _OURS}
        if isinstance(state, tuple) and state and isinstance(state[0], dict):
            return (self.without(state[0]), *state[1:])
        return state


def _uncompiled(placed: InPlace, compile_config: object = None) -> Forward:
    """Return what runs the module as it is, whatever compilation was asked for."""
    return placed.module.__call__


def owner_of(module: nn.Module) -> object | None:
    """Return the owner of what stands in `module`, None where nothing of ours does."""
    reduce = module.__dict__.get("__reduce_ex__")
    if isinstance(reduce, functools.partial) and reduce.func is _reduce_without:
        found = reduce.args[0]
        return found.owner if isinstance(found, InPlace) else None
    return None


def _reduce_without(placed: InPlace, protocol: Any) -> Any:
    module = placed.module
    reduced = type(module).__reduce_ex__(module, protocol)
    if isinstance(reduced, str) or len(reduced) < 3:
        return reduced
    return (*reduced[:2], placed.without(reduced[2]), *reduced[3:])


def _traceable(original: Forward, forward: Forward, name: str) -> Forward:
    """Return `forward` with the signature and name of `original`, which an outer compile sees instead."""

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            _tell_inlined(name)
            return original(*args, **kwargs)
        return forward(*args, **kwargs)

    return replaced


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _tell_inlined(name: str) -> None:
    """Say, once a model class, that an outer compile sees the original ops. Runs while Dynamo traces, not after."""
    if name not in _inlined and not _tracing_ours:
        _inlined.add(name)
        warnings.warn(
            f"hotswap: {name} is patched, but an outer torch.compile inlines it and its kernels are not used; "
            "compile it with backend='hotswap'",
            stacklevel=2,
        )


_inlined: set[str] = set()
_tracing_ours: list[None] = []


@contextmanager
def tracing_ours() -> Iterator[None]:
    """A context in which it is our own compile that inlines patched modules: nobody has to be told."""
    _tracing_ours.append(None)
    try:
        yield
    finally:
        _tracing_ours.pop()
