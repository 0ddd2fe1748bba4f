"""The models of the sweep by name, and what a child does with one."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from importlib import import_module

from hotswap.models.environment import environment
from hotswap.profiler.recording import Limits

from . import elsewhere
from .from_transformers import model_types, small
from .row import Row
from .trial import try_model

# What a row depends on: another of these and it says nothing. The machine only says how long it took.
_VERSIONS = ("hotswap", "python", "torch", "triton", "transformers")
# Small ones: what their trials load and set up serves every child that is forked after them.
WARMS_UP = ("elsewhere:convnext", "transformers:bert")


def loaded() -> tuple[dict[str, str], str]:
    """Load what every child needs; return the versions that rows belong to, and the machine they are made on."""
    import torch

    for name in ("torch._dynamo", "torch.utils.flop_counter", "hotswap.extractor.extract"):
        import_module(name)
    torch.set_num_threads(1)
    found = environment()
    return {name: found[name] for name in _VERSIONS}, f"{found['cpu']}, {found['os']}, {found['compiler']}"


def warmed(work: Callable[[str], Row]) -> Callable[[str], Row]:
    """Return `work` after it was done here once: imports and first calls are half the time of a child without it."""
    for name in WARMS_UP:
        work(name)
    return work


def names() -> list[str]:
    """Return all names, `transformers:TYPE` and `elsewhere:NAME`; types that most Auto classes know come first."""
    return [*(f"transformers:{t}" for t in model_types()), *(f"elsewhere:{n}" for n in elsewhere.MODELS)]


def measured_limits() -> Limits:
    """Return the device's limits from the cache, measured in a process of their own where they are not there."""
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", "from hotswap.profiler.limits import measure; measure('cpu')"], check=True)
    from hotswap.profiler.limits import measure

    return measure("cpu")


def trial(limits: Limits, *, derive: bool) -> Callable[[str], Row]:
    """Return what makes the row of one name, to be called in a process of its own."""

    def work(name: str) -> Row:
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        origin, _, which = name.partition(":")
        if origin == "elsewhere":
            return try_model(name, lambda: (elsewhere.workload(which), "as written"), limits, derive=derive)
        return try_model(name, lambda: small(which), limits, derive=derive)

    return work
