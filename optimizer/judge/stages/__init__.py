"""The stages of a verdict in the order they run: cheap ones first. A stage takes a trial and returns its evidence."""

from __future__ import annotations

from collections.abc import Callable

from ..trial import Trial
from .determinism import determinism
from .integrity import integrity
from .numerics import numerics
from .screen import screen
from .shapes import shapes
from .smoke import smoke

Stage = Callable[[Trial], dict[str, str]]

STAGES: tuple[Stage, ...] = (screen, smoke, shapes, numerics, determinism, integrity)
"""A stage raises `trial.Rejected` with the reason; its name is the function's. Timing follows, by the judge itself."""
