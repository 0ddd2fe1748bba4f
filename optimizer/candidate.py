"""A candidate and who makes them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..extractor.task import Task
from ..models.errors import SpecError
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


def read_source(path: Path) -> str:
    """Return the text of a candidate's file; raise SpecError where it cannot be read as text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as text ({error}); expected a Python file with `kernel`") from error


class Proposer(Protocol):
    """Anything that makes candidates. It is told everything through the history and keeps no score of its own."""

    @property
    def name(self) -> str: ...

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next candidate, None when there is nothing new to offer."""
        ...
