"""What a proposer sees of its own in the history: whether it may go on, what it tried, and its best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..attempt import Attempt

# Knobs do not change what is computed: what was rejected twice is wrong, not badly tuned.
REJECTIONS_ALLOWED = 2


@dataclass(frozen=True)
class OwnAttempts:
    """tried: hashes of sources. best: the quickest accepted one, None before there is any."""

    tried: frozenset[str]
    best: Attempt | None

    @property
    def parent(self) -> str | None:
        """The source that what is made around the best comes from."""
        return self.best.source_hash if self.best else None


def own_attempts(name: str, history: Sequence[Attempt], rejections: int = REJECTIONS_ALLOWED) -> OwnAttempts | None:
    """Return what proposer `name` has tried; None where so many were rejected before one was accepted."""
    own = [a for a in history if a.proposer == name]
    if not any(a.accepted for a in own) and len(own) >= rejections:
        return None
    timed = [a for a in own if a.accepted and a.median_us is not None]
    return OwnAttempts(
        frozenset(a.source_hash for a in own), min(timed, key=lambda a: a.median_us or 0.0, default=None)
    )
