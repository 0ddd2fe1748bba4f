"""The record of one model's way through the sweep."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

# patched: swapped, verified, taken out again. nothing: no region worth a kernel. not extractable: it runs, but its work
# cannot be cut out. not built: no small instance of it could be made and run here, so nothing is known.
# wrong: another answer than the model's. failed: everything else, a hang or a crash included.
OUTCOMES = ("patched", "nothing", "not extractable", "not built", "failed", "wrong")


@dataclass(frozen=True)
class Row:
    """outcome: one of OUTCOMES. stage: the last one reached. why: one line. seconds: by stage. facts: by name."""

    name: str
    outcome: str
    stage: str
    why: str
    seconds: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
