"""The ledger keeps what it acknowledged, through kills and damage, and lets one writer in."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotswap.extractor.task import Task
from hotswap.models.errors import RecordError, RecordLocked
from hotswap.optimizer.candidate import Candidate
from hotswap.optimizer.ledger import Ledger
from hotswap.optimizer.verdict import Arm, Interval, Race, Verdict

HERE = {"torch": "2.13.0", "threads": "2"}

# A writer that acknowledges each finished attempt on stdout, after the ledger did.
WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_ledger import HERE, candidate, verdict
from hotswap.extractor.task import Task
from hotswap.optimizer.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
task = Task.load(Path(sys.argv[3]))
for i in range(100000):
    tried = candidate(f"{{sys.argv[2]}}-{{i}}" + " " * 2000)
    number = ledger.begin(task, tried, HERE)
    print("begun", number, flush=True)
    ledger.finish(number, verdict(tried, 1.0 + i), median_us=1.0 + i, kept=False)
    print("done", number, 1.0 + i, flush=True)
"""


def candidate(text: str, parent: str | None = None) -> Candidate:
    return Candidate(
        source=text, proposer="scripted", parent=parent, knobs={"unroll": 4, "style": "rows", "fused": True}
    )


def verdict(tried: Candidate, us: float) -> Verdict:
    arms = tuple(
        Arm(name, (time,) * 8, time) for name, time in (("eager", 20.0), ("inductor", 10.0), ("candidate", us))
    )
    speedup = Interval(10.0 / us, 9.9 / us, 10.1 / us)
    race = Race("call", 6.0, arms, {"inductor": speedup}, "host wall", "cold", 0.2, 0.1)
    return Verdict(True, None, None, (), (race,), speedup, tried.hash, "none", HERE)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as opened:
        yield opened


def finish_one(ledger: Ledger, task: Task, text: str = "def kernel(x): ...", us: float = 5.0) -> int:
    tried = candidate(text)
    number = ledger.begin(task, tried, HERE)
    ledger.finish(number, verdict(tried, us), median_us=us, kept=True)
    return number


def test_an_attempt_comes_back_whole(ledger: Ledger, gelu: Task) -> None:
    tried = candidate("def kernel(x): ...", parent="0123")
    number = ledger.begin(gelu, tried, HERE)
    said = ledger.finish(number, verdict(tried, 5.0), median_us=5.0, kept=True)
    (found,) = ledger.attempts()
    assert found == said
    assert (found.task, found.fingerprint, found.parent) == ("gelu", gelu.fingerprint, "0123")
    assert found.knobs == {"unroll": 4, "style": "rows", "fused": True}
    assert found.verdict == verdict(tried, 5.0)
    assert found.environment == HERE
    assert found.finished is not None
    assert found.started <= found.finished
    assert ledger.source(found.source_hash) == tried.source


def test_a_source_tried_twice_is_stored_once(ledger: Ledger, gelu: Task) -> None:
    finish_one(ledger, gelu)
    finish_one(ledger, gelu)
    with sqlite3.connect(ledger.path) as db:
        assert db.execute("SELECT count(*) FROM source").fetchone() == (1,)
    db.close()
    assert len(ledger.attempts()) == 2


def test_an_unfinished_attempt_is_listed_and_not_trusted(ledger: Ledger, gelu: Task) -> None:
    ledger.begin(gelu, candidate("def kernel(x): ..."), HERE)
    assert [a.verdict for a in ledger.attempts()] == [None]
    assert ledger.finished(gelu.fingerprint) == ()


def test_tasks_do_not_see_each_others_attempts(ledger: Ledger, gelu: Task) -> None:
    finish_one(ledger, gelu)
    assert len(ledger.attempts(gelu.fingerprint)) == 1
    assert ledger.attempts("fingerprint-of-softmax") == ()


@pytest.mark.parametrize(
    "statement", ["DELETE FROM attempt", "UPDATE outcome SET median_us = 0.1", "DELETE FROM source"]
)
def test_what_is_written_cannot_be_rewritten(ledger: Ledger, statement: str, gelu: Task) -> None:
    finish_one(ledger, gelu)
    db = sqlite3.connect(ledger.path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute(statement)
    db.close()


def test_an_attempt_is_finished_once(ledger: Ledger, gelu: Task) -> None:
    number = finish_one(ledger, gelu)
    with pytest.raises(sqlite3.IntegrityError):
        ledger.finish(number, verdict(candidate("x"), 1.0), median_us=1.0, kept=False)


def test_a_second_writer_is_told_who_the_first_is(ledger: Ledger) -> None:
    script = (
        f"from hotswap.optimizer.ledger import Ledger; from pathlib import Path; Ledger(Path({str(ledger.path)!r}))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert f"RecordLocked: {ledger.path}: process {os.getpid()} is writing" in done.stderr


def test_a_second_writer_in_one_process_is_refused_and_does_not_free_the_first(ledger: Ledger) -> None:
    for _ in range(2):
        with pytest.raises(RecordLocked, match="this process already writes"):
            Ledger(ledger.path)
    test_a_second_writer_is_told_who_the_first_is(ledger)


def test_a_closed_ledger_lets_the_next_writer_in(tmp_path: Path, gelu: Task) -> None:
    for number in (1, 2):
        with Ledger(tmp_path / "ledger.db") as opened:
            assert finish_one(opened, gelu) == number


def test_it_is_read_while_it_is_written(ledger: Ledger, gelu: Task) -> None:
    finish_one(ledger, gelu)
    with Ledger.read(ledger.path) as reader:
        assert len(reader.attempts()) == 1
        finish_one(ledger, gelu)
        assert len(reader.attempts()) == 2
        with pytest.raises(RecordLocked, match="opened for reading"):
            finish_one(reader, gelu)


def test_a_baseline_holds_for_its_environment_only(ledger: Ledger, gelu: Task) -> None:
    race = verdict(candidate("x"), 5.0).races[0]
    assert ledger.baseline(gelu, HERE) is None
    ledger.set_baseline(gelu, race, HERE)
    assert ledger.baseline(gelu, HERE) == race
    assert ledger.baseline(gelu, HERE | {"threads": "1"}) is None


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(n, marks=pytest.mark.slow) for n in range(5, 25))])
def test_a_kill_at_any_moment_loses_nothing_that_was_acknowledged(tmp_path: Path, seed: int, gelu: Task) -> None:
    path = tmp_path / "ledger.db"
    where = tmp_path / "task.json"
    gelu.save(where)
    acknowledged: dict[int, float] = {}
    begun: set[int] = set()
    moment = random.Random(seed)
    for life in range(2):
        command = [
            sys.executable,
            "-P",
            "-c",
            WRITER.format(tests=str(Path(__file__).parent)),
            str(path),
            str(life),
            str(where),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            lines_to_live = moment.randint(1, 60)
            for count, line in enumerate(child.stdout):
                word, number, *time = line.split()
                begun.add(int(number))
                if word == "done":
                    acknowledged[int(number)] = float(time[0])
                if count == lines_to_live:
                    child.send_signal(signal.SIGKILL)
                    break
            # What it said after the signal was sent, before it died, counts as said.
            for line in child.stdout.read().splitlines():
                word, number, *time = line.split()
                begun.add(int(number))
                if word == "done" and time:
                    acknowledged[int(number)] = float(time[0])
        assert child.returncode == -signal.SIGKILL
    with Ledger(path) as ledger:
        finished = {a.number: a.median_us for a in ledger.finished(gelu.fingerprint)}
        listed = {a.number for a in ledger.attempts()}
    assert acknowledged.items() <= finished.items()
    assert begun <= listed
    assert len(finished) - len(acknowledged) <= 2, "a life ends in the middle of one attempt at most"


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_text("this is no database, and long enough to have a header of one\n" * 40)
    with pytest.raises(RecordError, match=r"ledger\.db: damaged .*--salvage"):
        Ledger(path)
    other = tmp_path / "other.db"
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(RecordError, match="not a ledger of hotswap"):
        Ledger(other)
    with pytest.raises(RecordError, match="no ledger there"):
        Ledger.read(tmp_path / "absent.db")


def test_a_newer_ledger_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.db").close()
    db = sqlite3.connect(tmp_path / "ledger.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(RecordError, match="schema 99 is newer than 1"):
        Ledger(tmp_path / "ledger.db")


def damaged_ledger(path: Path, gelu: Task, count: int) -> None:
    """Write a ledger and overwrite the pages that hold the middle of some of its sources."""
    with Ledger(path) as ledger:
        for i in range(count):
            finish_one(ledger, gelu, text=" " * 3000 + f"number {i};" + " " * 3000, us=5.0 + i)
    body = path.read_bytes()
    with path.open("r+b") as file:
        for i in range(10, 16):
            file.seek(body.index(f"number {i};".encode()) // 4096 * 4096)
            file.write(b"\xff" * 4096)


def test_salvage_keeps_what_is_whole(tmp_path: Path, gelu: Task) -> None:
    path = tmp_path / "ledger.db"
    damaged_ledger(path, gelu, 40)
    with pytest.raises(RecordError, match="damaged"):
        Ledger(path)
    saved = Ledger.salvage(path)
    assert 30 <= saved < 40
    with Ledger(path) as ledger:
        found = ledger.finished(gelu.fingerprint)
        assert len(found) == saved
        for attempt in found:
            assert candidate(ledger.source(attempt.source_hash)).hash == attempt.source_hash
        finish_one(ledger, gelu)
    assert path.with_name("ledger.db.damaged").exists()


def test_a_truncated_ledger_is_noticed_and_salvaged(tmp_path: Path, gelu: Task) -> None:
    path = tmp_path / "ledger.db"
    with Ledger(path) as ledger:
        for i in range(40):
            finish_one(ledger, gelu, text=f"def kernel(x): return {i}" + " " * 3000)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 3 // 4)
    with pytest.raises(RecordError, match="damaged"):
        Ledger.read(path)
    assert Ledger.salvage(path) > 0
    Ledger(path).close()


def test_salvage_of_rubbish_says_so_and_leaves_it_there(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    rubbish = os.urandom(40000)
    path.write_bytes(rubbish)
    with pytest.raises(RecordError, match="nothing in it can be read"):
        Ledger.salvage(path)
    assert path.read_bytes() == rubbish


def test_it_is_read_in_a_folder_nobody_may_write(tmp_path: Path, gelu: Task) -> None:
    folder = tmp_path / "run"
    with Ledger(folder / "ledger.db") as ledger:
        finish_one(ledger, gelu)
    frozen = tmp_path / "frozen"
    frozen.mkdir()
    shutil.copy(folder / "ledger.db", frozen)
    frozen.chmod(0o500)
    try:
        with Ledger.read(frozen / "ledger.db") as reader:
            assert len(reader.attempts()) == 1
    finally:
        frozen.chmod(0o700)
