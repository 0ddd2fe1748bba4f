"""Choose among sets of example inputs the first that a forward accepts, by running it on shapes alone.

A signature says what a forward can take, not what it needs: models with several towers take text, images or both, and
some refuse to run without an argument that has a default.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

# What a run on shapes ends with where the forward asks for a value: it came that far, and more cannot be told.
_DATA_DEPENDENT = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException,
)

_CACHED = type(lru_cache(len))
# How many sets of arguments are tried for good where shapes do not tell.
MOST_RUN = 12


def alternatives(
    wanted: Sequence[str], possible: Sequence[str], beside: Sequence[str] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield sets of arguments worth a try, likeliest first.

    wanted: what the model's description asks for. possible: arguments that an example can be made for. beside: those
    that say nothing without others.
    """
    seen: set[frozenset[str]] = set()
    more = [name for name in possible if name not in wanted]
    tries: list[tuple[str, ...]] = [
        tuple(wanted),
        *((*wanted, name) for name in (*more, *beside) if name not in wanted),
        *((name,) for name in (*wanted, *more)),
    ]
    for names in tries:
        if frozenset(names) not in seen:
            seen.add(frozenset(names))
            yield names


def accepted(model: Any, options: Iterator[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the first of `options`, keyword arguments, that the forward runs with.

    Shapes tell first, for nothing. Where they do not (a forward that asks for a value, an op that knows no shapes), it
    is run: first with what it did not refuse before it asked for a value. The first of that stays if it refuses all.
    """
    asked: list[Mapping[str, Any]] = []
    refused: list[Mapping[str, Any]] = []
    for kwargs in options:
        answer = runs_with(model, kwargs)
        if answer:
            return kwargs
        (asked if answer is None else refused).append(kwargs)
    left = [*asked, *refused]
    return next((kwargs for kwargs in left[:MOST_RUN] if runs(model, kwargs)), left[0])


def runs(model: Any, kwargs: Mapping[str, Any]) -> bool:
    """Tell whether the forward takes `kwargs`, by running it."""
    with _kept(model), torch.no_grad():
        try:
            model(**kwargs)
        except Exception:  # a forward refuses what it cannot take by whatever its code raises
            return False
    return True


def runs_with(model: Any, kwargs: Mapping[str, Any]) -> bool | None:
    """Tell whether the forward takes `kwargs`, by running it on shapes alone; None where that depends on values."""
    return on_shapes(model, "__call__", kwargs)[0]


def on_shapes(model: Any, method: str, kwargs: Mapping[str, Any]) -> tuple[bool | None, Any]:
    """Return whether the model's `method` takes `kwargs`, and what it returns, tensors without values.

    None instead of a bool where it asks for a value.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    inputs = {k: fake.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    run = getattr(model, method)
    with _kept(model), _forgotten():
        try:
            with fake, torch.no_grad():
                return True, run(**inputs)
        except _DATA_DEPENDENT:
            return None, None
        except Exception:  # a forward refuses what it cannot take by whatever its code raises
            return False, None


@contextmanager
def _kept(model: Any) -> Iterator[None]:
    """Put back what a forward leaves in the model's modules: a table or a cache made of shapes alone must not stay."""
    kept = [(module._buffers, dict(module._buffers), vars(module), dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for buffers, old_buffers, live, old in kept:
            buffers.clear()
            buffers.update(old_buffers)
            live.clear()
            live.update(old)


@contextmanager
def _forgotten() -> Iterator[None]:
    """Empty the caches of functions that were filled meanwhile: detectors keep anchors by size, here without values."""
    before = {id(cache): cache.cache_info().misses for cache in _caches()}
    yield
    for cache in _caches():
        if cache.cache_info().misses != before.get(id(cache), 0):
            cache.cache_clear()


def _caches() -> list[Any]:
    """Return all functions with a cache, but torch's own, which know what they keep."""
    found = [each for each in gc.get_objects() if type(each) is _CACHED]
    return [each for each in found if str(each.__module__).partition(".")[0] not in ("torch", "sympy")]
