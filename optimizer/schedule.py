"""Choose what to do next: where the most gain of the whole model is left for each second it is expected to take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .attempt import Attempt

# Before anything is known of a proposer: it wins as often as not, and a win closes half of what is left.
_PRIOR_TRIES, _PRIOR_WINS = 2.0, 1.0
_PART_OF_THE_GAP = 0.5
# How many tries on a task weigh as much as all that is known of the proposer from other tasks.
_FAITH = 2.0
_USUAL_VERDICT_S = 5.0


class Rates:
    """How often each proposer's tries won, and how long they took, over all tasks of the ledger.

    A win is a try that was kept: one whose gain cleared the noise.
    """

    def __init__(self, attempts: Iterable[Attempt] = ()) -> None:
        self._tries: dict[str, int] = defaultdict(int)
        self._wins: dict[str, int] = defaultdict(int)
        self._seconds: dict[str, list[float]] = defaultdict(list)
        for attempt in attempts:
            self.note(attempt)

    def note(self, attempt: Attempt) -> None:
        """Take one finished attempt into account."""
        if attempt.finished is None:
            return
        self._tries[attempt.proposer] += 1
        self._wins[attempt.proposer] += attempt.kept
        self._seconds[attempt.fingerprint].append(attempt.finished - attempt.started)

    def rate(self, proposer: str) -> float:
        """Return the share of a proposer's tries that won, between 0 and 1, a half while nothing is known."""
        return (self._wins[proposer] + _PRIOR_WINS) / (self._tries[proposer] + _PRIOR_TRIES)

    def chance(self, proposer: str, history: Sequence[Attempt]) -> float:
        """Return the chance that its next try on a task wins: its rate, less for each try there since its last win."""
        own = [a for a in history if a.proposer == proposer]
        since = next((i for i, a in enumerate(reversed(own)) if a.kept), len(own))
        return self.rate(proposer) * _FAITH / (_FAITH + since)

    def seconds(self, fingerprint: str) -> float:
        """Return how long a verdict on a task takes, from those on it, else from all there were."""
        known = self._seconds.get(fingerprint) or [s for all_of_task in self._seconds.values() for s in all_of_task]
        return sum(known) / len(known) if known else _USUAL_VERDICT_S


@dataclass(frozen=True)
class Option:
    """One thing that could be done next. left_us: what a step of the model would gain with the task at its floor.

    seconds: what it is expected to take, the opening of the task's judge included.
    """

    task: str
    proposer: str
    left_us: float
    chance: float
    seconds: float

    @property
    def worth(self) -> float:
        """Expected gain of the whole model, in microseconds a step, for each second of work."""
        return self.left_us * self.chance * _PART_OF_THE_GAP / max(self.seconds, 1e-3)


def best(options: Sequence[Option]) -> Option | None:
    """Return the option worth most, the first of equals; None where there is none."""
    return max(options, key=lambda o: o.worth, default=None)
