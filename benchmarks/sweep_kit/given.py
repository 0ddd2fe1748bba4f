"""Make the inputs that `overrides.json` describes, for types whose arguments nothing can be guessed of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hotswap.models.workload import Call


def given_call(described: Mapping[str, Any]) -> Call:
    """Return the call whose keyword arguments `described` says, equal ones each time.

    An argument is {"shape": [..]} with how it is filled: nothing for normal draws, {"below": N} for integers from 0 to
    N - 1, {"fill": V} for one value, of V's type; a list of such; or a value that stands for itself.
    """
    generator = torch.Generator().manual_seed(0)
    return Call(kwargs={name: _made(each, generator) for name, each in described.items()}, name="example")


def _made(described: Any, generator: torch.Generator) -> Any:
    if isinstance(described, list):
        return [_made(each, generator) for each in described]
    if not isinstance(described, Mapping):
        return described
    shape = described["shape"]
    if "below" in described:
        return torch.randint(described["below"], shape, generator=generator)
    if "fill" in described:
        return torch.full(shape, described["fill"])
    return torch.randn(shape, generator=generator)
