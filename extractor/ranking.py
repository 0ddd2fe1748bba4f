"""Tell how far two rankings of one model's tasks agree."""

from __future__ import annotations

from itertools import combinations

from .task import Extraction


def kendall_tau(one: Extraction, other: Extraction) -> float | None:
    """Return Kendall's tau of two extractions over the tasks that both hold: 1 for equal orders, -1 for reversed ones.

    A task is the same where its fingerprint is, and stands where its record stands. None with fewer than two in common.
    """
    places = {task.fingerprint: place for place, task in enumerate(other.tasks)}
    common = [places[task.fingerprint] for task in one.tasks if task.fingerprint in places]
    pairs = list(combinations(common, 2))
    if not pairs:
        return None
    return sum(1 if first < second else -1 for first, second in pairs) / len(pairs)
