"""The search over many tasks: what comes next, who shares what, when it moves on, and one writer whatever judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from scripted import PACE, ScriptedExecutor, kernel

from hotswap.extractor.task import Task
from hotswap.optimizer.attempt import Attempt
from hotswap.optimizer.campaign import Campaign, Plan, Standing
from hotswap.optimizer.candidate import Candidate, Proposer
from hotswap.optimizer.ledger import Ledger
from hotswap.optimizer.proposers.lifted import Lifted, constants
from hotswap.optimizer.schedule import Option, Rates, best
from hotswap.optimizer.verdict import Race
from hotswap.optimizer.winner import Winner


@dataclass
class Script:
    """Proposes given sources in order, whatever became of them."""

    sources: list[str]
    name: str = "scripted"

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        return Candidate(self.sources.pop(0), self.name, None, {}) if self.sources else None


class Search:
    """Runs a campaign over tasks by name; keeps how each ended."""

    def __init__(self, root: Path, ledger: Ledger, like: Task) -> None:
        self.root, self.ledger, self.like = root, ledger, like
        self.plans: list[Plan] = []
        self.winners: dict[str, Winner] = {}
        self.refused: dict[str, str] = {}
        self.watched: list[Standing] = []

    def add(self, name: str, *proposers: Proposer, eager_us: float = 120.0, floor_us: float = 3.0) -> None:
        task = replace(self.like, name=name, fingerprint=f"of-{name}", eager_us=eager_us, floor_us=floor_us)
        task.save(self.root / name / "task.json")
        self.plans.append(Plan(self.root / name, task, lambda: proposers, PACE, 1000.0))

    def run(
        self,
        executor: ScriptedExecutor,
        *,
        budget_s: float = 60.0,
        least_gain: float = 0.0,
        clock: Callable[[], float] | None = None,
    ) -> list[str]:
        """Return the order in which candidates were judged, as `task` names."""
        campaign = Campaign(
            self.plans,
            ledger=self.ledger,
            executor=executor,
            budget_s=budget_s,
            done=lambda task, winner: self.winners.update({task.name: winner}),
            refused=lambda task, why: self.refused.update({task.name: why}),
            watch=self.watched.append,
            least_gain=least_gain,
            **({"clock": clock} if clock else {}),
        )
        campaign.run()
        return [name for _, name, what in executor.asked if what not in ("open", "leave")]


@pytest.fixture
def searching(tmp_path: Path, ledger: Ledger, gelu: Task) -> Search:
    return Search(tmp_path, ledger, gelu)


def test_the_task_with_most_to_gain_is_worked_on_first(searching: Search) -> None:
    searching.add("small", Script([kernel(9.0), kernel(8.0)]), eager_us=50.0)
    searching.add("large", Script([kernel(9.0), kernel(8.0)]), eager_us=5000.0)
    assert searching.run(ScriptedExecutor()) == ["large", "large", "small", "small"]


def test_it_moves_on_when_tries_on_a_task_bring_nothing(searching: Search) -> None:
    vain = [kernel(11.0 + n) for n in range(30)]
    searching.add("large", Script([kernel(9.0), *vain]), eager_us=240.0)
    searching.add("small", Script([kernel(9.0), kernel(4.0)], name="other"), eager_us=120.0)
    order = searching.run(ScriptedExecutor())
    assert order.index("small") < 12
    assert len(order) == 33


def test_a_proposer_that_wins_elsewhere_is_asked_before_one_that_loses(searching: Search) -> None:
    searching.add("first", Script([kernel(9.0 - n) for n in range(4)], name="good"), Script([], name="bad"))
    searching.add("second", Script(["wrong = 1"] * 4, name="bad"))
    searching.run(ScriptedExecutor())
    again = Search(searching.root, searching.ledger, searching.like)
    again.add("third", Script([kernel(9.5), kernel(9.6)], name="bad"), Script([kernel(9.0), kernel(8.9)], name="good"))
    executor = ScriptedExecutor()
    again.run(executor)
    assert [what for _, _, what in executor.asked][1] == kernel(9.0)


def test_a_task_at_its_floor_is_left_with_candidates_to_spare(searching: Search) -> None:
    searching.add("gelu", Script([kernel(0.5), kernel(0.4)]))
    assert searching.run(ScriptedExecutor()) == ["gelu"]
    assert searching.winners["gelu"].source == kernel(0.5)


def test_a_task_that_can_no_longer_move_the_model_is_left(searching: Search) -> None:
    searching.add("gelu", Script([kernel(2.0), kernel(1.0)]))
    assert searching.run(ScriptedExecutor(), least_gain=0.05) == ["gelu"]


def test_a_task_whose_judge_will_not_open_is_refused_and_the_rest_goes_on(searching: Search) -> None:
    searching.add("odd", Script([kernel(9.0)]), eager_us=500.0)
    searching.add("gelu", Script([kernel(9.0)]))
    searching.run(ScriptedExecutor(refuse="odd"))
    assert searching.refused == {"odd": "its inputs prove nothing"}
    assert searching.winners["gelu"].choice == "kernel"


def test_a_task_nobody_has_a_candidate_for_opens_no_judge_and_times_no_rival(searching: Search) -> None:
    searching.add("barren", Script([]), eager_us=5000.0)
    searching.add("gelu", Script([kernel(9.0)]))
    executor = ScriptedExecutor()
    assert searching.run(executor) == ["gelu"]
    assert {name for _, name, _ in executor.asked} == {"gelu"}
    assert (searching.winners["barren"].choice, searching.winners["barren"].reason) == (
        "leave", "no proposer had a candidate",
    )  # fmt: skip


def test_the_candidate_that_had_a_judge_opened_is_the_first_it_judges(searching: Search) -> None:
    searching.add("gelu", Script([], name="barren"), Script([kernel(9.0), kernel(8.0)]))
    executor = ScriptedExecutor()
    searching.run(executor)
    assert [what for _, _, what in executor.asked] == ["open", kernel(9.0), kernel(8.0), "leave"]


def test_who_wants_the_rivals_times_is_told_them_before_it_proposes(searching: Search) -> None:
    told: list[Race] = []

    def asking(baseline: Race) -> list[Script]:
        told.append(baseline)
        return [Script([kernel(8.0)])]

    searching.add("gelu", Script([]))
    searching.plans[0] = replace(searching.plans[0], asking=asking)
    searching.run(ScriptedExecutor())
    assert [a.name for a in told[0].arms] == ["eager", "inductor"]
    assert searching.winners["gelu"].source == kernel(8.0)


def test_a_winner_on_record_keeps_its_verified_domain_though_nobody_has_anything_new(searching: Search) -> None:
    searching.add("gelu", Script([kernel(9.0)]))
    searching.run(ScriptedExecutor())
    again = Search(searching.root, searching.ledger, searching.like)
    again.add("gelu", Script([]))
    assert again.run(ScriptedExecutor()) == []
    assert again.winners["gelu"].domain == searching.winners["gelu"].domain


def test_when_the_time_is_over_what_was_opened_still_gets_one_try_and_a_winner(searching: Search) -> None:
    ticks = iter(range(0, 10_000, 20))
    searching.add("gelu", Script([kernel(9.0), kernel(8.0)]))
    searching.add("other", Script([kernel(9.0)]), eager_us=50.0)
    assert searching.run(ScriptedExecutor(), budget_s=50.0, clock=lambda: float(next(ticks))) == ["gelu"]
    assert set(searching.winners) == {"gelu"}


def test_a_killed_search_repeats_no_candidate(searching: Search) -> None:
    searching.add("gelu", Script([kernel(9.0), kernel(8.0)]))
    searching.run(ScriptedExecutor())
    again = Search(searching.root, searching.ledger, searching.like)
    again.add("gelu", Script([kernel(9.0), kernel(8.0), kernel(7.0)]))
    executor = ScriptedExecutor()
    assert len(again.run(executor)) == 1
    assert again.winners["gelu"].attempts == 3


def test_two_slots_judge_two_tasks_and_each_task_stays_where_it_was_opened(searching: Search) -> None:
    for name in ("one", "two", "three"):
        searching.add(name, Script([kernel(9.0 - n) for n in range(3)]))
    executor = ScriptedExecutor(slots=2)
    searching.run(executor)
    places = {name: {slot for slot, asked, _ in executor.asked if asked == name} for name in ("one", "two", "three")}
    assert all(len(slots) == 1 for slots in places.values())
    assert {slot for slots in places.values() for slot in slots} == {0, 1}
    assert [a.number for a in searching.ledger.attempts()] == list(range(1, 10))


def test_a_kernels_constants_are_lifted_and_turned_by_another_proposer(searching: Search) -> None:
    source = "BLOCK = 64\n" + kernel(9.0)
    lifted = Lifted(searching.ledger.source)
    searching.add("gelu", Script([source], name="llm:m"), lifted)
    searching.run(ScriptedExecutor())
    tried = searching.ledger.attempts()
    assert [a.proposer for a in tried] == ["llm:m", "lifted", "lifted", "lifted", "lifted"][: len(tried)]
    assert tried[1].knobs == {"BLOCK": 128}
    assert searching.ledger.source(tried[1].source_hash) == source.replace("BLOCK = 64", "BLOCK = 128")
    assert tried[1].parent == tried[0].source_hash


def test_constants_are_top_level_whole_numbers_in_capitals() -> None:
    text = (
        "A = 4\nb = 5\nC = 1.5\nSTATIC_WEIGHTS = True\nD = E = 3\nF = 'x'\n\ndef kernel(x):\n    G = 7\n    return x\n"
    )
    assert constants(text) == {"A": 4}


def test_whoever_watches_sees_each_task_and_what_is_done(searching: Search) -> None:
    searching.add("gelu", Script([kernel(9.0), kernel(8.0), "wrong = 1"]))
    searching.run(ScriptedExecutor())
    row = searching.watched[-1].rows[0]
    assert (row.task, row.tried, row.accepted, row.kept) == ("gelu", 3, 2, 2)
    assert row.best == pytest.approx(10 / 8)


def test_worth_is_gain_times_chance_for_each_second() -> None:
    options = [
        Option("a", "x", 100.0, 0.5, 10.0),
        Option("b", "x", 100.0, 0.5, 5.0),
        Option("c", "x", 100.0, 0.9, 10.0),
    ]
    assert best(options) is options[1]
    assert best([]) is None


def test_a_chance_falls_with_each_try_since_the_last_win() -> None:
    rates = Rates()
    assert rates.chance("new", []) == 0.5
