"""One attempt on a task, as the ledger keeps it and the proposers are shown it."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.record import Record
from .verdict import Verdict

Knob = str | bool | int


@dataclass(frozen=True)
class Attempt(Record):
    """One candidate before the judge.

    parent: hash of the source it was made from, None for a first draft.
    verdict: None while it is unfinished, which after a kill it stays. Such an attempt is not trusted.
    median_us: time of one call, weighted over the shapes; None unless accepted and timed.
    kept: whether it became the parent of what follows.
    started, finished: seconds since the epoch.
    """

    number: int
    task: str
    fingerprint: str
    source_hash: str
    parent: str | None
    proposer: str
    knobs: dict[str, Knob]
    started: float
    finished: float | None
    verdict: Verdict | None
    median_us: float | None
    kept: bool
    environment: dict[str, str]

    @property
    def accepted(self) -> bool:
        return self.verdict is not None and self.verdict.accepted
