"""What is asked of a model next: a small population bred from, failures repaired once, and never one thing for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted import ScriptedJudge, kernel

from hotswap.extractor.task import Task
from hotswap.optimizer.attempt import Attempt
from hotswap.optimizer.candidate import Candidate
from hotswap.optimizer.ledger import Ledger
from hotswap.optimizer.llm.prompt import outcome
from hotswap.optimizer.llm.strategy import POPULATION, Move, next_move, population
from hotswap.optimizer.search import Hunt


class Tried:
    """A history made by a real search before a scripted judge."""

    def __init__(self, folder: Path, task: Task, ledger: Ledger) -> None:
        self.ledger = ledger
        self.hunt = Hunt(task, folder, ledger, ScriptedJudge())

    def __call__(self, *sources: str) -> list[Attempt]:
        for source in sources:
            self.hunt.attempt(Candidate(source, "llm", None, {}))
        return list(self.hunt.history)

    def move(self, asked: int, mending: tuple[str, ...] = ()) -> Move:
        return next_move(self.hunt.history, asked, self.ledger.source, outcome, mending)


@pytest.fixture
def tried(folder: Path, gelu: Task, ledger: Ledger) -> Tried:
    return Tried(folder, gelu, ledger)


def test_the_population_is_the_fastest_accepted_kernels_each_once(tried: Tried) -> None:
    tried(kernel(9.0), "wrong = 1\n", *(kernel(us) for us in (8.0, 5.0, 7.0, 6.0)))
    alive = population(tried.hunt.history)
    assert [a.median_us for a in alive] == [5.0, 6.0, 7.0, 8.0]
    assert len(alive) == POPULATION


def test_with_nothing_accepted_it_begins_anew_from_other_angles(tried: Tried) -> None:
    assert [tried.move(n).strategy for n in range(3)] == ["begin"] * 3
    assert len({tried.move(n).instruction for n in range(3)}) == 3


def test_with_a_population_all_moves_come_in_turn_and_most_refine_the_best(tried: Tried) -> None:
    tried(kernel(9.0), kernel(8.0), "wrong = 1\n")
    moves = [tried.move(n) for n in range(5)]
    assert [m.strategy for m in moves] == ["refine", "repair", "refine", "explore", "cross"]
    best, other = (a.source_hash for a in population(tried.hunt.history))
    assert [m.parent for m in moves] == [best, tried.hunt.history[-1].source_hash, best, other, best]
    assert [title for title, _, _ in moves[4].shown] == ["The parent", "The other"]


def test_what_somebody_repairs_already_is_not_repaired_again(tried: Tried) -> None:
    broken = tried(kernel(9.0), "wrong = 1\n")[-1].source_hash
    assert tried.move(1).parent == broken
    assert tried.move(1, (broken,)).strategy == "refine"
