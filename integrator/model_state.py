"""Run a model and put back what the run wrote into it: every verification run starts from the state the user left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .output_tree import Leaf

_PLAIN = (torch.Tensor, type(None), bool, int, float)


@contextmanager
def put_back(model: nn.Module) -> Iterator[Callable[[], tuple[Leaf, ...]]]:
    """Yield a function returning the buffers written so far; afterwards each is the old object with the old values.

    Plain attributes go back too: a forward may cache a tensor on its module, and a wider run's is not the model's.
    """
    buffers = [
        (f"{path}.{name}".lstrip("."), module, name, buffer, buffer.detach().clone())
        for path, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    attributes = [(vars(module), dict(vars(module))) for module in model.modules()]

    def written() -> tuple[Leaf, ...]:
        now = [(path, module._buffers[name], old) for path, module, name, _, old in buffers]
        return tuple(
            Leaf(f"buffers.{path}", None if buffer is None else buffer.detach().clone())
            for path, buffer, old in now
            if buffer is None or not same_values(buffer, old)
        )

    try:
        yield written
    finally:
        for live, saved in attributes:
            _restore(live, saved)
        with torch.no_grad():
            for _, module, name, buffer, old in buffers:
                module._buffers[name] = buffer
                if not same_values(buffer, old):
                    buffer.copy_(old)


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether shapes, dtypes and values agree, NaN being equal to NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.layout is not torch.strided or other.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    return bool(((one == other) | ((one != one) & (other != other))).all())


@contextmanager
def seeded(model: nn.Module, seed: int) -> Iterator[None]:
    """Fix the random state inside, for the CPU and the model's GPUs, and give the caller's back."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def _restore(live: dict[str, Any], saved: dict[str, Any]) -> None:
    # Only plain values: a forward that installs a hook or builds an object once means it to stay, and the flag that
    # says so with it. What goes is what a run made beside a tensor of its own.
    new = [name for name, value in live.items() if name not in saved and isinstance(value, _PLAIN)]
    if any(isinstance(live[name], torch.Tensor) for name in new):
        for name in new:
            del live[name]
    for name, value in saved.items():
        if isinstance(value, _PLAIN) and live.get(name) is not value:
            live[name] = value
