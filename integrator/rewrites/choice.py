"""Which rewrites a run left out of its model, and why: `rewrites.json` in its directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...models.record import Record

FILE = "rewrites.json"


@dataclass(frozen=True)
class RewriteChoice(Record):
    """off: the switch of each rewrite that did not pay in the whole model, with the reason."""

    off: dict[str, str]


def rewrites_off(run: Path) -> frozenset[str]:
    """Return the switches that a run left off; none where it has not asked."""
    path = run / FILE
    return frozenset(RewriteChoice.load(path).off) if path.exists() else frozenset()
