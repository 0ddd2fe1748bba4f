"""The search keeps what clears the noise, repeats nothing, stops in time and says how a task ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotswap.extractor.task import Task
from hotswap.models.environment import environment
from hotswap.optimizer.attempt import Attempt
from hotswap.optimizer.candidate import Candidate
from hotswap.optimizer.decision import gain
from hotswap.optimizer.ledger import Ledger
from hotswap.optimizer.search import packs_weights, search
from hotswap.optimizer.verdict import Arm, Interval, Race, Verdict
from hotswap.optimizer.winner import Winner

NOISE = 0.02


def race(**medians: float) -> Race:
    arms = tuple(Arm(name, tuple(us * (1 + NOISE * (i - 4) / 8) for i in range(9)), us) for name, us in medians.items())
    us = medians.get("candidate", medians["eager"])
    speedup = {
        name: Interval(t / us, t / us * (1 - NOISE), t / us * (1 + NOISE))
        for name, t in medians.items()
        if name != "candidate"
    }
    return Race("call", 6.0, arms, speedup, "host wall", "cold", 0.2, 0.1)


@dataclass
class FakeJudge:
    """Times a source by the number written in it; "wrong" sources are rejected. Counts what it was asked."""

    eager: float = 20.0
    inductor: float = 10.0
    tried: Sequence[Sequence[tuple[int, ...]]] = (((1, 384),), ((0, 384),), ((513, 384),))
    asked: list[str] = field(default_factory=list)
    baselines: int = 0

    def baseline(self) -> Race:
        self.baselines += 1
        return race(eager=self.eager, inductor=self.inductor)

    def verdict(self, source: str) -> Verdict:
        self.asked.append(source)
        digest = Candidate(source, "scripted", None, {}).hash
        if "wrong" in source:
            return Verdict(False, "smoke", "wrong at 3 of 4096 values", (), (), None, digest, "none", {})
        timed = race(eager=self.eager, inductor=self.inductor, candidate=float(source.split("=")[-1]))
        best = min(timed.speedup.values(), key=lambda i: i.median)
        return Verdict(True, None, None, (), (timed,), best, digest, "none", {})


@dataclass
class Script:
    """Proposes given sources in order, whatever became of them, and notes the parent it saw each time."""

    sources: list[str]
    name: str = "scripted"
    parents: list[str | None] = field(default_factory=list)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        kept = [a for a in history if a.kept]
        self.parents.append(kept[-1].source_hash if kept else None)
        if not self.sources:
            return None
        return Candidate(self.sources.pop(0), self.name, self.parents[-1], {})


def us(value: float) -> str:
    return f"us = {value}"


@pytest.fixture
def folder(tmp_path: Path, gelu: Task) -> Path:
    gelu.save(tmp_path / "00-gelu" / "task.json")
    return tmp_path / "00-gelu"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as opened:
        yield opened


Searching = Callable[..., Winner]


@pytest.fixture
def searching(folder: Path, ledger: Ledger) -> Searching:
    def run(judge: FakeJudge, *proposers: Script, seconds: float = 60.0) -> Winner:
        return search(folder, ledger=ledger, judge=judge, proposers=proposers, seconds=seconds)

    return run


def test_the_fastest_correct_candidate_wins(searching: Searching, ledger: Ledger) -> None:
    winner = searching(FakeJudge(), Script([us(9.5), "wrong = 1", us(8.0), us(9.0)]))
    assert winner.choice == "kernel"
    assert winner.source == us(8.0)
    assert winner.attempts == 4
    assert [a.kept for a in ledger.attempts()] == [True, False, True, False]
    assert winner.reason == "1.25x (1.23 to 1.27) Inductor's code; scripted, attempt 3 of 4"


def test_a_gain_within_the_noise_does_not_change_the_parent(searching: Searching, ledger: Ledger) -> None:
    script = Script([us(8.0), us(7.9), us(6.0)])
    searching(FakeJudge(), script)
    first, second, third = ledger.attempts()
    assert [first.kept, second.kept, third.kept] == [True, False, True]
    assert script.parents == [None, first.source_hash, first.source_hash, third.source_hash]


def test_the_kept_source_lies_in_the_task_folder(searching: Searching, folder: Path) -> None:
    searching(FakeJudge(), Script([us(8.0), us(12.0)]))
    assert (folder / "kernel.py").read_text(encoding="utf-8") == us(8.0)


def test_proposers_take_turns_and_one_may_end_early(searching: Searching, ledger: Ledger) -> None:
    searching(FakeJudge(), Script([us(9), us(8.5)], "a"), Script([us(8.8)], "b"), Script([us(9.1), us(9.2)], "c"))
    assert [a.proposer for a in ledger.attempts()] == ["a", "b", "c", "a", "c"]


def test_inductor_wins_where_no_candidate_beats_it(searching: Searching) -> None:
    winner = searching(FakeJudge(), Script([us(11.0)]))
    assert (winner.choice, winner.source, winner.domain) == ("inductor", None, None)
    assert "Inductor's code is 2.00x" in winner.reason
    assert "our best was 0.91x" in winner.reason


def test_a_tie_with_inductor_is_no_win(searching: Searching) -> None:
    assert searching(FakeJudge(), Script([us(9.9)])).choice == "inductor"


def test_eager_is_left_alone_where_nothing_is_faster(searching: Searching) -> None:
    winner = searching(FakeJudge(inductor=20.0), Script(["wrong = 1"]))
    assert winner.choice == "leave"
    assert winner.reason.endswith("none of 1 candidates passed: wrong at 3 of 4096 values (smoke)")


def test_a_baseline_that_took_all_the_time_is_followed_by_one_try(
    searching: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    class Slow(FakeJudge):
        def baseline(self) -> Race:
            now[0] += 1000.0
            return super().baseline()

    monkeypatch.setattr("hotswap.optimizer.search.time", SimpleNamespace(monotonic=lambda: now[0]))
    assert searching(Slow(), Script([us(8.0), us(7.0)])).source == us(8.0)


def test_a_proposer_says_why_it_has_nothing(searching: Searching) -> None:
    @dataclass
    class Unable(Script):
        reason: str | None = "index_put is no loop nest"

    winner = searching(FakeJudge(), Unable([], "template"))
    assert winner.reason == "no proposer had a candidate; template: index_put is no loop nest"


def test_rivals_are_not_timed_where_nobody_has_a_candidate(searching: Searching, ledger: Ledger, gelu: Task) -> None:
    judge = FakeJudge()
    winner = searching(judge, Script([]))
    assert (winner.choice, winner.attempts, judge.baselines) == ("leave", 0, 0)
    assert ledger.baseline(gelu, environment()) is None


def test_rivals_are_timed_while_answers_are_on_their_way(searching: Searching) -> None:
    @dataclass
    class Slow(Script):
        waiting: bool = True
        answered: bool = False

        def ask_ahead(self, history: Sequence[Attempt]) -> None: ...

        def wait(self, seconds: float) -> None:
            self.sources, self.waiting = [us(8.0)], False

        def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
            if self.sources:
                assert judge.baselines == 1
            return super().propose(task, history)

    judge = FakeJudge()
    assert searching(judge, Slow([])).source == us(8.0)


def test_at_the_floor_nothing_is_tried(searching: Searching, folder: Path) -> None:
    judge = FakeJudge(eager=20.0, inductor=5.1)  # the floor is a quarter of eager
    winner = searching(judge, Script([us(4.0)]))
    assert judge.asked == []
    assert winner.choice == "inductor"


def test_the_search_ends_when_a_candidate_reaches_the_floor(searching: Searching) -> None:
    judge = FakeJudge()
    winner = searching(judge, Script([us(5.1), us(5.0)]))
    assert judge.asked == [us(5.1)]
    assert winner.choice == "kernel"


def test_no_time_means_the_baseline_and_one_try(searching: Searching) -> None:
    judge = FakeJudge()
    winner = searching(judge, Script([us(8.0), us(7.0)]), seconds=0.0)
    assert (judge.baselines, judge.asked, winner.choice) == (1, [us(8.0)], "kernel")


def test_the_budget_ends_the_search(searching: Searching, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr("hotswap.optimizer.search.time.monotonic", lambda: float(next(clock)))
    judge = FakeJudge()
    searching(judge, Script([us(9 - i / 100) for i in range(50)]), seconds=45.0)
    assert len(judge.asked) == 4  # at 10, 20, 30 and 40 seconds


def test_a_killed_search_goes_on_without_repeating_anything(folder: Path, tmp_path: Path) -> None:
    sources = [us(9.5), us(9.0), us(8.0), us(7.0)]

    class Killed(FakeJudge):
        def verdict(self, source: str) -> Verdict:
            if len(self.asked) == 2:
                raise KeyboardInterrupt
            return super().verdict(source)

    first, second = Killed(), FakeJudge()
    with Ledger(tmp_path / "ledger.db") as ledger, pytest.raises(KeyboardInterrupt):
        search(folder, ledger=ledger, judge=first, proposers=[Script(list(sources))], seconds=60)
    with Ledger(tmp_path / "ledger.db") as ledger:
        winner = search(folder, ledger=ledger, judge=second, proposers=[Script(list(sources))], seconds=60)
    assert first.asked == sources[:2]
    assert second.asked == sources[2:], "the interrupted one is tried again, the finished ones are not"
    assert second.baselines == 0
    assert (winner.source, winner.attempts) == (us(7.0), 4)


def test_attempts_of_another_machine_are_made_again(searching: Searching, monkeypatch: pytest.MonkeyPatch) -> None:
    searching(FakeJudge(), Script([us(8.0)]))
    monkeypatch.setattr("hotswap.optimizer.search.environment", lambda: environment() | {"cpu": "another"})
    judge = FakeJudge()
    searching(judge, Script([us(8.0)]))
    assert judge.asked == [us(8.0)]
    assert judge.baselines == 1


def test_a_proposer_that_only_repeats_itself_is_done(searching: Searching) -> None:
    class Parrot(Script):
        def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
            return Candidate(us(8.0), "parrot", None, {})

    judge = FakeJudge()
    assert searching(judge, Parrot([])).attempts == 1


def test_a_winner_is_verified_for_the_sizes_that_were_tried(searching: Searching) -> None:
    domain = searching(FakeJudge(), Script([us(8.0)])).domain
    assert domain is not None
    assert domain.symbols == (((0, 0),),)
    assert domain.sizes == ((1, 513),)
    assert domain.fixed == ((0, 1, 384),)
    assert [(i.dtype, i.rank, i.layout, i.role) for i in domain.inputs] == [("float32", 2, "any", "activation")]


def test_a_gain_and_its_inverse_are_reciprocal() -> None:
    judge = FakeJudge()
    fast, slow = judge.verdict(us(6.0)), judge.verdict(us(8.0))
    there, back = gain(fast, slow), gain(slow, fast)
    assert there is not None
    assert back is not None
    assert there.median == pytest.approx(8 / 6)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))


@pytest.mark.parametrize(
    ("source", "packs"),
    [("STATIC_WEIGHTS = True\n", True), ("STATIC_WEIGHTS = False\n", False), ("x = 'STATIC_WEIGHTS = True'\n", False)],
)
def test_packing_is_what_the_file_declares(source: str, packs: bool) -> None:
    assert packs_weights(source) is packs
