"""Run directories: one writer, nothing lost, nothing repeated, one clear line when the disk or a file is bad."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hotswap.integrator import run_directory, run_lock
from hotswap.integrator.run_directory import RunDirectory, load_run, slug
from hotswap.models.errors import RecordError, RecordLocked, ResourceExhausted, SpecError

NOW = datetime(2026, 11, 30, 10, 15, tzinfo=UTC)


def test_a_new_run_is_named_by_time_and_model_and_loads_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings, sources = {"budget_s": 60.0, "seq_len": [128]}, {"budget_s": "flag"}
    with RunDirectory.create("org/All-MiniLM_L6", settings=settings, sources=sources, seed=3, now=NOW) as made:
        assert made.folder == Path("runs/20261130-101500-all-minilm-l6")
    run = load_run(made.folder)
    assert run == made.run
    assert (run.model, run.seed, run.settings, run.sources) == ("org/All-MiniLM_L6", 3, settings, sources)


def test_two_runs_of_one_second_get_two_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = (RunDirectory.create("m", now=NOW) for _ in range(2))
    assert [one.folder.name, other.folder.name] == ["20261130-101500-m", "20261130-101500-m-2"]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt2", "gpt2"),
        ("/data/minilm/model/", "minilm"),
        ("my_file.py:build_it", "build-it"),
        ("llama-3.2-1b@tiny", "llama-3.2-1b-tiny"),
        ("///", "model"),
    ],
)
def test_a_models_name_becomes_a_folder_name(model: str, name: str) -> None:
    assert slug(model) == name


def test_finished_stages_survive_and_are_known_after_opening_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with RunDirectory.create("m", out=out) as made:
        assert made.run.next_stage == "profile"
        made.finish("profile", 1.5)
        made.finish("extract", 2.0)
    with RunDirectory.open(out) as again:
        assert again.done("extract")
        assert not again.done("optimize")
        assert again.run.next_stage == "optimize"
        assert again.run.stages == {"profile": 1.5, "extract": 2.0}


def test_a_moved_run_knows_where_it_is(tmp_path: Path) -> None:
    RunDirectory.create("m", out=tmp_path / "a").close()
    (tmp_path / "a").rename(tmp_path / "b")
    assert load_run(tmp_path / "b").folder == str(tmp_path / "b")


def test_a_second_writer_is_refused_while_the_first_lives_and_not_afterwards(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with RunDirectory.create("m", out=out):
        with pytest.raises(RecordLocked, match="in use by this process"):
            RunDirectory.open(out)
        with pytest.raises(RecordLocked, match=f"in use by process {os.getpid()}"):
            RunDirectory.create("m", out=out)
        assert load_run(out).model == "m"  # reading needs no lock
    RunDirectory.open(out).close()


_HOLD = """
import sys, time, os
from pathlib import Path
from hotswap.integrator.run_directory import RunDirectory
RunDirectory.open(Path(sys.argv[1]))
if os.fork() == 0:
    time.sleep(60)  # a worker that outlives its killed parent must not keep the run locked
print("held", flush=True)
time.sleep(60)
"""


def test_a_lock_dies_with_its_owner_even_where_its_workers_live(tmp_path: Path) -> None:
    out = tmp_path / "run"
    RunDirectory.create("m", out=out).close()
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(out)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            with pytest.raises(RecordLocked, match=f"in use by process {process.pid}"):
                RunDirectory.open(out)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            RunDirectory.open(out).close()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_lock_of_a_process_whose_number_was_given_again_is_taken_over(tmp_path: Path) -> None:
    made = RunDirectory.create("m", out=tmp_path / "run")
    lock = made.folder / run_lock.NAME
    lock.write_text(json.dumps(json.loads(lock.read_text()) | {"born": "1"}))
    RunDirectory.open(made.folder).close()


def test_a_lock_of_another_machine_is_respected_and_says_what_to_do(tmp_path: Path) -> None:
    made = RunDirectory.create("m", out=tmp_path / "run")
    lock = made.folder / run_lock.NAME
    lock.write_text(json.dumps({"pid": "1", "host": "elsewhere", "born": "1"}))
    with pytest.raises(RecordLocked, match=r"process 1 on elsewhere; .* remove .*\.lock if it is dead"):
        RunDirectory.open(made.folder)


def test_half_a_lock_from_a_crash_locks_nothing(tmp_path: Path) -> None:
    made = RunDirectory.create("m", out=tmp_path / "run")
    (made.folder / run_lock.NAME).write_text('{"pid": ')
    RunDirectory.open(made.folder).close()


def test_an_out_folder_with_a_run_or_other_files_in_it_is_refused(tmp_path: Path) -> None:
    RunDirectory.create("m", out=tmp_path / "run").close()
    with pytest.raises(SpecError, match="holds a run already; `hotswap resume"):
        RunDirectory.create("m", out=tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(SpecError, match="not an empty folder"):
        RunDirectory.create("m", out=tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_an_absent_foreign_truncated_or_newer_run_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no such directory"):
        RunDirectory.open(tmp_path / "none")
    with pytest.raises(RecordError, match=r"not a run directory, it has no run\.json"):
        RunDirectory.open(tmp_path)
    made = RunDirectory.create("m", out=tmp_path / "run")
    made.close()
    record = made.folder / "run.json"
    text = record.read_text()
    record.write_text(text[: len(text) // 2])
    with pytest.raises(RecordError, match="not whole JSON"):
        RunDirectory.open(made.folder)
    record.write_text(json.dumps(json.loads(text) | {"schema": 99}))
    with pytest.raises(RecordError, match="newer than"):
        RunDirectory.open(made.folder)
    record.write_text(text)
    RunDirectory.open(made.folder).close()  # none of the failures left a lock


def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hotswap.models.record.Path.open", full)
    with pytest.raises(ResourceExhausted, match="No space left on device"):
        RunDirectory.create("m", out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_no_folder_can_be_made_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceExhausted, match="cannot be made"):
        RunDirectory.create("m", out=tmp_path / "file" / "run")
    monkeypatch.setattr(run_directory, "RUNS", Path("/proc/runs"))
    with pytest.raises(ResourceExhausted, match="choose --out"):
        RunDirectory.create("m")


def test_the_parts_have_the_names_of_the_design(tmp_path: Path) -> None:
    with RunDirectory.create("m", out=tmp_path / "run") as made:
        parts = (made.environment, made.profile, made.trace, made.tensorboard, made.tasks, made.ledger, made.patched)
        names = [part.relative_to(made.folder).as_posix() for part in parts]
        assert names == ["env.json", "profile.json", "trace.json.gz", "tb", "tasks", "ledger.db", "patched"]
        assert made.report("html") == made.folder / "report.html"
