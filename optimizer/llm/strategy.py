"""Choose what to ask for next: refine the best, repair a failure, cross two, explore, or begin anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from ..attempt import Attempt

Strategy = Literal["begin", "refine", "explore", "repair", "cross"]
# How many distinct accepted kernels of a task are bred from.
POPULATION = 4
# Failures that are slips of writing, not wrong ideas.
_REPAIRABLE = ("screen", "smoke")
# What follows what once something was accepted: mostly refine, now and then something else, so as not to get stuck.
_CYCLE: tuple[Strategy, ...] = ("refine", "repair", "refine", "explore", "cross")


@dataclass(frozen=True)
class Move:
    """One request's aim. parent: hash of the file a diff would be against, None for a first draft.

    shown: (title, source, what the judge said) of each file in the prompt, the parent first.
    """

    strategy: Strategy
    instruction: str
    parent: str | None
    shown: tuple[tuple[str, str, str], ...] = ()


def population(history: Sequence[Attempt]) -> list[Attempt]:
    """Return the fastest accepted attempts, best first, at most POPULATION of them, each source once."""
    timed = sorted((a for a in history if a.accepted and a.median_us is not None), key=lambda a: a.median_us or 0.0)
    distinct = {a.source_hash: a for a in reversed(timed)}
    return sorted(distinct.values(), key=lambda a: a.median_us or 0.0)[:POPULATION]


def next_move(
    history: Sequence[Attempt],
    asked: int,
    source: Callable[[str], str],
    said: Callable[[Attempt], str],
    mending: Collection[str] = (),
) -> Move:
    """Return the move for request number `asked` (from 0). source: a candidate's text by hash; said: its outcome.

    mending: hashes somebody was asked to repair already.
    """
    alive, broken = population(history), _repairable(history, mending)
    if not alive:
        return _repair(broken[0], source, said) if broken and asked % 2 else _begin(asked)
    strategy = _CYCLE[asked % len(_CYCLE)]
    if strategy == "repair" and broken:
        return _repair(broken[0], source, said)
    if strategy == "explore" and len(alive) > 1:
        other = alive[1 + asked // len(_CYCLE) % (len(alive) - 1)]
        return _from(other, "explore", _EXPLORE, source, said)
    if strategy == "cross" and len(alive) > 1:
        best, other = alive[0], alive[1 + asked // len(_CYCLE) % (len(alive) - 1)]
        shown = (_shown("The parent", best, source, said), _shown("The other", other, source, said))
        return Move("cross", _CROSS, best.source_hash, shown)
    if strategy in ("explore", "cross"):
        return _begin(asked)
    return _from(alive[0], "refine", _REFINE, source, said)


def _begin(asked: int) -> Move:
    return Move("begin", f"{_BEGIN} {_ANGLES[asked % len(_ANGLES)]}", None)


def _from(
    attempt: Attempt,
    strategy: Strategy,
    words: str,
    source: Callable[[str], str],
    said: Callable[[Attempt], str],
) -> Move:
    return Move(strategy, words, attempt.source_hash, (_shown("The parent", attempt, source, said),))


def _repair(attempt: Attempt, source: Callable[[str], str], said: Callable[[Attempt], str]) -> Move:
    return _from(attempt, "repair", _REPAIR, source, said)


def _shown(
    title: str, attempt: Attempt, source: Callable[[str], str], said: Callable[[Attempt], str]
) -> tuple[str, str, str]:
    return title, source(attempt.source_hash), said(attempt)


def _repairable(history: Sequence[Attempt], mending: Collection[str]) -> list[Attempt]:
    """Return failures at an early stage that nobody repaired yet, the latest first."""
    children = {a.parent for a in history} | set(mending)
    return [
        a
        for a in reversed(history)
        if a.verdict is not None and a.verdict.stage in _REPAIRABLE and a.source_hash not in children
    ]


_BEGIN = "Write a first kernel for the whole region, right before fast."
_ANGLES = (
    "Take the plainest form that reads each input once.",
    "Choose the form that the figures above ask for most.",
    "Choose a form unlike everything tried so far.",
)
_REFINE = "Make the parent faster by the one change that the figures say matters most. Keep what is right about it."
_EXPLORE = (
    "Start from this parent, which is not the best, and change its structure: another split of the work, another pass "
    "over the data, other instructions. Do not tune constants only."
)
_REPAIR = "The parent failed before it could be timed. Mend exactly what the judge says, and nothing else."
_CROSS = "Join the two: keep the parent's structure and bring in what makes the other fast, where they differ."
