"""A candidate and who makes them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..extractor.task import Task
from ..models.record import Record
from .attempt import Attempt, Knob


@dataclass(frozen=True)
class Candidate(Record):
    """A file that claims to solve a task. parent: hash of the source it was made from, None for a first draft."""

    source: str
    proposer: str
    parent: str | None
    knobs: dict[str, Knob]

    @property
    def hash(self) -> str:
        """The identity of a candidate: its source and nothing else."""
        return hashlib.sha256(self.source.encode()).hexdigest()


class Proposer(Protocol):
    """Anything that makes candidates. It is told everything through the history and keeps no score of its own."""

    @property
    def name(self) -> str: ...

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next candidate, None when there is nothing new to offer."""
        ...
