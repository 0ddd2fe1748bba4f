"""Rivals start in the background, and Inductor gets a second chance where the CPU is not what it was told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotswap.optimizer.judge import rivals
from hotswap.optimizer.judge.hall import Hall, Worker, WorkerError
from hotswap.optimizer.judge.rivals import Rivals


class Stub:
    """A trusted worker that calls nothing. broken: its compiled reference fails where Inductor trusts the CPU."""

    def __init__(self, environment: dict[str, str], *, broken: bool) -> None:
        self.environment, self.broken, self.ended = environment, broken, False

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        if do == "rival" and order["compiled"] and self.broken and rivals._TRUSTING.items() <= self.environment.items():
            raise WorkerError("killed by SIGILL")
        return {}

    def end(self) -> None:
        self.ended = True


class Stubs:
    """A hall of stubs; keeps all it gave. may_start: what `trusted` waits for."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken, self.given, self.back = broken, list[Stub](), list[Stub]()
        self.may_start = threading.Event()
        self.may_start.set()

    def trusted(self, environment: dict[str, str]) -> Stub:
        self.may_start.wait(10.0)
        self.given.append(Stub(environment, broken=self.broken))
        return self.given[-1]

    def give_back(self, worker: Stub) -> None:
        self.back.append(worker)


def started(hall: Any, tmp_path: Path) -> Rivals:
    return Rivals(hall, [], tmp_path, compiled=True, cache=tmp_path)


def test_inductor_is_told_that_the_extensions_of_the_cpu_work(tmp_path: Path) -> None:
    hall = Stubs()
    found = started(hall, tmp_path)
    assert [lane.name for lane in found.lanes(1.0)] == ["eager", "inductor"]
    assert all(rivals._TRUSTING.items() <= stub.environment.items() for stub in hall.given)
    found.close()
    assert len(hall.back) == 2


def test_inductor_tests_the_cpu_itself_where_trusting_it_failed(tmp_path: Path) -> None:
    hall = Stubs(broken=True)
    found = started(hall, tmp_path)
    assert [lane.name for lane in found.lanes(1.0)] == ["eager", "inductor"]
    assert found.missing == ""
    assert len(hall.given) == 3
    assert [stub.ended for stub in hall.given if stub.environment.keys() >= rivals._TRUSTING.keys()].count(True) == 1
    found.close()
    assert len(hall.back) == 2


def test_a_rival_that_starts_when_its_judge_is_closed_is_ended(tmp_path: Path) -> None:
    hall = Stubs()
    hall.may_start.clear()
    found = started(hall, tmp_path)
    closing = threading.Thread(target=found.close)
    closing.start()
    hall.may_start.set()
    closing.join(10.0)
    assert not closing.is_alive()
    assert all(stub.ended or stub in hall.back for stub in hall.given)


@pytest.fixture
def waking(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hall, threading.Event]]:
    """A hall whose parent answers no order before the event is set, and the event."""
    told, fork = threading.Event(), Hall.fork

    def late(self: Hall, order: dict[str, Any], fds: tuple[int, ...]) -> int:
        with self._asking:
            told.wait(60.0)
        return fork(self, order, fds)

    monkeypatch.setattr(Hall, "fork", late)
    with Hall(threads=1) as hall:
        yield hall, told
        told.set()


def test_a_judge_goes_on_with_its_own_work_while_the_parent_of_workers_starts(
    waking: tuple[Hall, threading.Event], tmp_path: Path
) -> None:
    hall, told = waking
    begun = Rivals(hall, [], tmp_path, compiled=True, cache=tmp_path)
    hiding = threading.Thread(target=hall.hide, args=(str(tmp_path),))
    hiding.start()
    hiding.join(20.0)
    try:
        assert not hiding.is_alive(), "it waits for a worker that a rival has asked for"
    finally:
        told.set()
    begun.close()


def test_a_worker_of_this_hall_can_be_given_back_and_taken_again(halls: Callable[[str], Hall]) -> None:
    hall = halls("cpu")
    one: Worker = hall.trusted({"A": "1"})
    hall.give_back(one)
    assert hall.trusted({"A": "1"}) is one
    other = hall.trusted({"A": "1"})
    assert other is not one
    for worker in (one, other):
        worker.end()
