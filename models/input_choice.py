"""Choose among sets of example inputs the first that a forward accepts, by running it on shapes alone.

A signature says what a forward can take, not what it needs: models with several towers take text, images or both, and
some refuse to run without an argument that has a default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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


def alternatives(wanted: Sequence[str], possible: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield sets of arguments worth a try, likeliest first.

    wanted: what the model's description asks for. possible: all arguments that an example can be made for.
    """
    seen: set[frozenset[str]] = set()
    more = [name for name in possible if name not in wanted]
    tries: list[tuple[str, ...]] = [
        tuple(wanted),
        *((*wanted, name) for name in more),
        *((name,) for name in (*wanted, *more)),
    ]
    for names in tries:
        if frozenset(names) not in seen:
            seen.add(frozenset(names))
            yield names


def accepted(model: Any, options: Iterator[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the first of `options`, keyword arguments, that the forward runs with.

    Where it runs with none, the first that it did not refuse before it asked for a value; else the first one.
    """
    first: Mapping[str, Any] | None = None
    asked: Mapping[str, Any] | None = None
    for kwargs in options:
        first = first if first is not None else kwargs
        answer = runs_with(model, kwargs)
        if answer:
            return kwargs
        if answer is None and asked is None:
            asked = kwargs
    chosen = asked if asked is not None else first
    assert chosen is not None
    return chosen


def runs_with(model: Any, kwargs: Mapping[str, Any]) -> bool | None:
    """Tell whether the forward takes `kwargs`, by running it on shapes alone; None where that depends on values."""
    return on_shapes(model, model, kwargs)[0]


def on_shapes(model: Any, run: Callable[..., Any], kwargs: Mapping[str, Any]) -> tuple[bool | None, Any]:
    """Return whether `run`, a call into `model`, takes `kwargs`, and what it returns, tensors without values.

    None instead of a bool where it asks for a value.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    inputs = {k: fake.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    kept = [(module._buffers, dict(module._buffers), vars(module), dict(vars(module))) for module in model.modules()]
    try:
        with fake, torch.no_grad():
            return True, run(**inputs)
    except _DATA_DEPENDENT:
        return None, None
    except Exception:  # a forward refuses what it cannot take by whatever its code raises
        return False, None
    finally:
        # A forward may keep a table or a cache it made: of shapes alone, it must not stay.
        for buffers, old_buffers, live, old in kept:
            buffers.clear()
            buffers.update(old_buffers)
            live.clear()
            live.update(old)
