"""How long work says how far it is, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told how far a named piece of work is: `done` of `total`, in any unit; equal means it is over.

    note: what is going on now, for a reader; the empty string leaves the last one standing.
    """

    def __call__(self, what: str, done: float, total: float, note: str = "") -> None: ...


def silent(what: str, done: float, total: float, note: str = "") -> None:
    """Listen to nothing: the Progress of library callers who asked for none."""
