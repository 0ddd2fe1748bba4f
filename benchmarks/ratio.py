"""A measured ratio as the tables show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def ratio(row: Mapping[str, Any] | None) -> str:
    """Return how much faster ours is than a result row's arm, with the interval; "-" where that was not measured."""
    faster = row.get("ours_faster") if row else None
    return f"{faster['median']:.2f}x [{faster['low']:.2f}, {faster['high']:.2f}]" if faster else "-"
