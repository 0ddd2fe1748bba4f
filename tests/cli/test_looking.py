"""The commands that look: env, config, clean, ls and show."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gelu_task import gelu_task

from hotswap.cli.main import main
from hotswap.extractor.task import ShapeCase, Site, Task, TensorSpec
from hotswap.integrator.results import EndToEnd, Report
from hotswap.optimizer.candidate import Candidate
from hotswap.optimizer.ledger import Ledger
from hotswap.optimizer.verdict import Arm, Interval, Race, Verdict
from hotswap.optimizer.winner import Winner

FIRST, BETTER = "def kernel(x):\n    return x.gelu()\n", "def kernel(x):\n    return fast(x)\n"


@pytest.fixture
def hotswap(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: str) -> tuple[int, str, str]:
        code = main(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def task() -> Task:
    case = ShapeCase("call", (TensorSpec("x", (512, 384), (384, 1), 0, "torch.bfloat16", "activation"),), 6, 6.0, 20.0)
    site = Site("layer.0.act", "GELU", ("gelu",), "model.py:1", 0, whole_module=True)
    made: Task = gelu_task(fingerprint="f1", cases=(case,), sites=(site,), size_symbols=(), notes=("tanh form",))
    return made


def judged(tried: Candidate, us: float | None) -> Verdict:
    if us is None:
        return Verdict(False, "smoke", "wrong at 3 of 4096 values", (), (), None, tried.hash, "none", {})
    speedup = Interval(10.0 / us, 9.9 / us, 10.1 / us)
    race = Race("call", 6.0, (Arm("candidate", (us,) * 8, us),), {"inductor": speedup}, "wall", "cold", 0.2, 0.1)
    return Verdict(True, None, None, (), (race,), speedup, tried.hash, "none", {})


@pytest.fixture
def run_folder(here: Path) -> Path:
    """A run that was stopped: two tasks, four attempts on one of them."""
    run = here / "runs" / "20261130-101500-minilm"
    Winner("gelu", "f1", "leave", None, None, None, None, False, 3, "eager is best").save(run / "winners" / "gelu.json")
    task().save(run / "tasks" / "00-gelu" / "task.json")
    task().save(run / "tasks" / "01-softmax" / "task.json")
    first = Candidate(FIRST, "template", None, {"unroll": 4})
    with Ledger(run / "ledger.db") as ledger:
        for source, us, kept in ((FIRST, 8.0, True), ("wrong", None, False), (BETTER, 5.0, True)):
            tried = Candidate(source, "template", first.hash if source == BETTER else None, {"unroll": 4})
            number = ledger.begin(task(), tried, {})
            ledger.finish(number, judged(tried, us), median_us=us, kept=kept)
        ledger.begin(task(), Candidate("killed", "template", None, {}), {})
    return run


def report(**changed: Any) -> Report:
    empty: dict[str, Any] = dict.fromkeys(
        ("checks", "engagement", "rows", "ablations", "stories", "skipped", "before", "after", "breaks", "notes"), ()
    )
    interval = Interval(1.4, 1.38, 1.42)
    arms = tuple(Arm(name, (us,) * 8, us) for name, us in (("eager", 14.0), ("compile", 11.0), ("hotswap", 10.0)))
    measured = EndToEnd("call", 1.0, arms, {"eager": interval, "compile": Interval(1.1, 1.05, 1.15)}, {}, 0.1)
    values = empty | {
        "model": "minilm",
        "device": "cpu",
        "dtype": "bfloat16",
        "complete": True,
        "tail": "inductor",
        "started": "2026-11-30T10:15:00",
        "seconds": 90.0,
        "seconds_by_stage": {},
        "end_to_end": (measured,),
        "predicted_speedup": None,
        "copy_gb_s": 20.0,
        "matmul_tflop_s": {},
        "coverage": 0.99,
        "environment": {},
        "patched": None,
        "command": "hotswap run minilm",
    }
    return Report(**(values | changed))


Hotswap = Callable[..., tuple[int, str, str]]


def test_env_is_one_json_object_with_what_figures_depend_on(hotswap: Hotswap) -> None:
    code, out, _ = hotswap("env", "--json")
    assert code == 0
    assert {"hotswap", "python", "torch", "cpu", "threads", "compiler"} <= json.loads(out).keys()


def test_config_says_where_each_value_came_from(hotswap: Hotswap, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "hotswap.toml").write_text('budget = "5m"\ntop = 4\nseed = 7\n')
    monkeypatch.setenv("HOTSWAP_TOP", "5")
    _, out, _ = hotswap("config", "--json", "--budget", "90s")
    found = json.loads(out)
    assert found["budget"] == {"value": "90.0", "source": "flag --budget"}
    assert found["top"] == {"value": "5", "source": "HOTSWAP_TOP"}
    assert found["seed"]["source"].endswith("hotswap.toml:3")
    assert found["mode"]["source"] == "default"


def test_a_bad_value_names_its_flag(hotswap: Hotswap) -> None:
    code, out, err = hotswap("config", "--budget", "soon")
    assert (code, out) == (2, "")
    assert "flag --budget" in err


def test_clean_removes_the_cache_and_nothing_else(
    hotswap: Hotswap, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = here / "cache"
    (cache / "kernels").mkdir(parents=True)
    (cache / "kernels" / "a.so").write_bytes(b"x" * 1000)
    (here / "mine").write_text("stays")
    (cache / "link").symlink_to(here / "mine")
    monkeypatch.setenv("HOTSWAP_CACHE", str(cache))
    _, out, _ = hotswap("clean", "--dry-run", "--json")
    assert json.loads(out)["entries"][0] == {"path": str(cache / "kernels"), "bytes": 1000}
    assert (cache / "kernels" / "a.so").exists()
    code, _, _ = hotswap("clean")
    assert code == 0
    assert list(cache.iterdir()) == []
    assert (here / "mine").read_text() == "stays"


def test_ls_credits_nothing_of_torch_compile_to_a_run_that_kept_no_kernel(hotswap: Hotswap, here: Path) -> None:
    arms = (Arm("eager", (14.0,) * 8, 14.0), Arm("compile", (11.0,) * 8, 11.0))
    alone = EndToEnd("call", 1.0, arms, {"eager": Interval(1.27, 1.25, 1.3)}, {}, 0.1)
    folder = here / "runs" / "20261130-131500-gpt2"
    report(end_to_end=(alone,)).save(folder / "report.json")
    _, out, _ = hotswap("ls", "--json")
    (row,) = json.loads(out)
    assert (row["eager"], row["compile"]) == (None, None)


def test_ls_lists_what_each_run_came_to(hotswap: Hotswap, run_folder: Path) -> None:
    runs = run_folder.parent
    report().save(runs / "20261130-111500-gpt2" / "report.json")
    (runs / "20261130-111500-gpt2" / "tasks").mkdir()
    (runs / "20261130-121500-bad" / "tasks").mkdir(parents=True)
    (runs / "20261130-121500-bad" / "report.json").write_text("{")
    (runs / "not-a-run").mkdir()
    _, out, _ = hotswap("ls", "--json")
    bad, done, stopped = json.loads(out)
    assert [bad["state"], done["state"], stopped["state"]] == ["unreadable", "done", "stopped"]
    assert (done["model"], done["eager"], done["compile"]) == ("minilm", 1.4, 1.1)
    assert stopped["tasks"] == 2
    assert "report.json" in bad["problem"]
    code, table, _ = hotswap("ls")
    assert code == 0
    assert "1.40x" in table


def test_show_explains_a_task_and_what_was_tried(hotswap: Hotswap, run_folder: Path) -> None:
    code, out, _ = hotswap("show", str(run_folder / "tasks" / "00-gelu"))
    assert code == 0
    for fact in (
        "layer.0.act (GELU, the whole module)",
        "120 us a step, 20.0% of it",
        "512x384",
        "tanh form",
        "rejected at smoke: wrong at 3 of 4096 values",
        "2.00x (1.98-2.02)",
        "interrupted, not trusted",
        "ends with leave: eager is best",
    ):
        assert fact in out


@pytest.mark.parametrize("name", ["last:gelu", "20261130-101500-minilm:gelu", "last:00-gelu", "last:00"])
def test_a_task_is_found_by_run_and_name(hotswap: Hotswap, run_folder: Path, name: str) -> None:
    code, out, _ = hotswap("show", name, "--json")
    assert code == 0
    assert json.loads(out)["task"]["name"] == "gelu"
    assert [a["kept"] for a in json.loads(out)["attempts"]] == [True, False, True, False]


def test_the_log_tells_what_each_attempt_changed_and_what_became_of_it(hotswap: Hotswap, run_folder: Path) -> None:
    _, out, _ = hotswap("show", "last:gelu", "--log")
    heads = [line.split()[0] + line[-10:] for line in out.splitlines() if "  attempt " in line]
    assert heads == ["unfinished attempt 4", "keep attempt 3", "revert attempt 2", "keep attempt 1"]
    assert "--- a/kernel.py\n+++ b/kernel.py\n@@ -1,2 +1,2 @@\n def kernel(x):\n-    return x.gelu()\n+" in out
    assert "    rejected at smoke: wrong at 3 of 4096 values\n" in out
    assert "    kept: 2.00x (1.98 to 2.02, 99%) the best rival, 5.0 us a call\n" in out
    first = Candidate(FIRST, "", None, {}).hash
    assert f"From:   {first}, the best then" in out  # of the two without a parent
    assert hotswap("task", "log", "last:gelu")[1] == out


def test_each_patch_of_the_log_makes_the_attempt_of_what_it_came_from(
    hotswap: Hotswap, run_folder: Path, here: Path
) -> None:
    entries = json.loads(hotswap("task", "log", "last:gelu", "--json")[1])["attempts"]
    assert [e["decision"] for e in entries] == ["unfinished", "keep", "revert", "keep"]
    sources = {Candidate(text, "", None, {}).hash: text for text in (FIRST, BETTER, "wrong", "killed")}
    for entry in entries:
        file = here / "kernel.py"
        file.unlink(missing_ok=True)
        if entry["from"]:
            file.write_text(sources[entry["from"]])
        (here / "change.patch").write_text(entry["patch"])
        subprocess.run(["git", "apply", "change.patch"], cwd=here, check=True)
        assert file.read_text() == sources[entry["source_hash"]]


def test_a_parent_nobody_knows_is_no_parent(hotswap: Hotswap, run_folder: Path) -> None:
    with Ledger(run_folder / "ledger.db") as ledger:
        ledger.begin(task(), Candidate("mine", "agent", "f" * 64, {}), {})
    code, out, _ = hotswap("task", "log", "last:gelu")
    assert code == 0
    assert f"From:   {Candidate(BETTER, '', None, {}).hash}, the best then" in out


def test_a_source_is_printed_by_the_beginning_of_its_hash(hotswap: Hotswap, run_folder: Path) -> None:
    digest = Candidate(BETTER, "", None, {}).hash
    assert hotswap("show", "last:gelu", "--source", digest[:8])[1] == BETTER
    code, out, err = hotswap("show", "last:gelu", "--source", "zzz")
    assert (code, out) == (2, "")
    assert "no candidate begins with it" in err


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["show", "last:gelo"], 2, "did you mean 'gelu'?"),
        (["show", "20261130-101500-miniln:gelu"], 4, "did you mean '20261130-101500-minilm'?"),
        (["show", "nowhere"], 2, "not a task folder"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(
    hotswap: Hotswap, run_folder: Path, words: list[str], code: int, line: str
) -> None:
    got, out, err = hotswap(*words)
    assert (got, out) == (code, "")
    assert line in err


def test_a_damaged_ledger_is_named_with_the_way_out(hotswap: Hotswap, run_folder: Path) -> None:
    (run_folder / "ledger.db").write_bytes(b"\x00rubbish" * 2000)
    code, _, err = hotswap("show", "last:gelu")
    assert code == 4
    assert "ledger.db: damaged" in err
    assert "--salvage" in err


def test_a_suite_gets_its_own_arguments_and_a_misspelt_one_is_answered_with_the_nearest(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench"]) == 0
    assert "\nmodels " in capfd.readouterr().out
    assert main(["bench", "overhead", "--help"]) == 0
    assert "usage: overhead.py" in capfd.readouterr().out
    assert main(["bench", "kernel"]) == 2
    assert "did you mean 'kernels'?" in capfd.readouterr().err
