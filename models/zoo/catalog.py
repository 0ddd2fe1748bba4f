"""Turn `NAME@full|slice|tiny` into the fields of a config. Knows JSON and names, not models."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

from ..errors import SpecError
from ..suggest import did_you_mean

SIZES = ("full", "slice", "tiny")


@functools.cache
def names() -> tuple[str, ...]:
    """Return the zoo's names, sorted."""
    return tuple(
        sorted(f.name.removesuffix(".json") for f in resources.files(__package__).iterdir() if f.name.endswith(".json"))
    )


def config(spec: str) -> dict[str, Any]:
    """Return the config fields that `NAME@SIZE` stands for: the public model's, overlaid with the size's own."""
    name, _, size = spec.partition("@")
    if name not in names():
        raise SpecError(f"{spec}: no zoo model is called {name!r}{did_you_mean(name, names())}")
    if size not in SIZES:
        raise SpecError(f"{spec}: expected a size full, slice or tiny after @, got {size!r}{did_you_mean(size, SIZES)}")
    entry = describe(name)
    over = entry[size] if size != "full" else {}
    return {**entry["config"], **over}


def describe(name: str) -> dict[str, Any]:
    """Return the zoo's file about `name`: source (the public model), config, slice and tiny (fields that differ)."""
    entry: dict[str, Any] = json.loads((resources.files(__package__) / f"{name}.json").read_text(encoding="utf-8"))
    return entry
