"""The kernel benchmark, dry: what it believes, what it keeps, and what it makes of its rows."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from hotswap.benchmarks import kernels
from hotswap.benchmarks.kernels_kit import race
from hotswap.benchmarks.kernels_kit.ours import Search, as_task
from hotswap.benchmarks.kernels_kit.rivals import not_as_asked, unlike
from hotswap.benchmarks.kernels_kit.rows import FAMILIES, Row, rows
from hotswap.benchmarks.kernels_kit.table import as_csv, best_rival, by_row, geometric_mean, markdown, plot
from hotswap.extractor.task import Task
from hotswap.optimizer.attempt import Attempt
from hotswap.optimizer.candidate import Candidate


def result(task: str, arm: str, us: float | None, share: float | None = 0.5) -> dict[str, Any]:
    faster = {"median": 2.0, "low": 1.9, "high": 2.1} if arm != "ours" and us else None
    return {
        "task": task, "shape": "8x8", "dtype": "float16", "arm": arm, "us": us, "interval": [us, us] if us else None,
        "share_of_limit": share if us else None, "ours_faster": faster, "note": None,
    }  # fmt: skip


RESULTS = [
    result("a", "eager", 40.0), result("a", "torch.compile", 20.0), result("a", "liger", None),
    result("a", "ours", 10.0),
    result("b", "eager", 10.0), result("b", "torch.compile", 5.0), result("b", "ours", 10.0),
    result("c", "eager", 10.0), result("c", "ours", None),
]  # fmt: skip


def test_the_best_rival_is_the_fastest_timed_arm_that_is_not_ours() -> None:
    arms = dict(by_row(RESULTS))
    best = best_rival(arms["a", "8x8", "float16"])
    assert best is not None
    assert best["arm"] == "torch.compile"


def test_a_geometric_mean_is_over_rows_that_have_both_arms() -> None:
    assert geometric_mean(RESULTS, "torch.compile") == pytest.approx((2.0 * 0.5) ** 0.5)
    assert geometric_mean(RESULTS, "starter") is None


def test_an_arm_whose_output_is_not_laid_out_as_asked_is_shown_with_a_mark_and_is_no_rival() -> None:
    padded = result("a", "torch.compile", 5.0) | {"counts": False, "note": "its output has strides (50264, 1)"}
    results = [r | {"counts": True} for r in RESULTS if (r["task"], r["arm"]) != ("a", "torch.compile")] + [padded]
    best = best_rival(dict(by_row(results))["a", "8x8", "float16"])
    assert best is not None
    assert best["arm"] == "eager"
    assert geometric_mean(results, "torch.compile") == pytest.approx(0.5)
    table = markdown(results)
    assert "| 5.0 † |" in table
    assert "(torch.compile, a: its output has strides (50264, 1))" in table
    assert "strides (50264, 1)" in plot(results, "title")
    assert "†" not in markdown(RESULTS)


def test_only_a_row_that_asks_for_contiguous_outputs_says_that_one_is_not() -> None:
    view = torch.zeros(4, 16)[:, :9]
    (dense,) = (f for f in FAMILIES if f.task == "GPT-2 head, contiguous")
    (free,) = (f for f in FAMILIES if f.task == "GPT-2 head")
    assert not_as_asked(Row(dense, (4, 8, 9), torch.float16), (view,)) == "its output has strides (16, 1)"
    assert not_as_asked(Row(dense, (4, 8, 9), torch.float16), (view.contiguous(),)) is None
    assert not_as_asked(Row(free, (4, 8, 9), torch.float16), (view,)) is None
    (several,) = (f for f in FAMILIES if f.task == "gate,up linears, contiguous")
    both = (view.contiguous(), view)
    assert not_as_asked(Row(several, (4, 8, 9), torch.float16), both) == "its output 1 has strides (16, 1)"


def test_csv_has_a_line_an_arm_and_markdown_a_line_a_row_with_dashes_for_what_was_not_timed() -> None:
    lines = list(csv.DictReader(io.StringIO(as_csv(RESULTS))))
    assert [(line["task"], line["arm"]) for line in lines] == [(r["task"], r["arm"]) for r in RESULTS]
    table = markdown(RESULTS).splitlines()
    assert sum(line.startswith(("| a", "| b", "| c")) for line in table) == 3
    (untimed,) = (line for line in table if line.startswith("| c"))
    assert untimed.split(" | ")[2] == "-"


def test_the_plot_is_whole_xml_with_a_dot_for_every_timed_arm() -> None:
    tree = ElementTree.fromstring(plot(RESULTS, "title <&>"))  # made just above
    titles = [e.text for e in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == sum(r["us"] is not None for r in RESULTS)
    assert "ours: 10.0 µs, 50% of the limit" in titles


def test_what_reads_above_the_measured_limit_is_rejected_and_not_a_time() -> None:
    row = Row(FAMILIES[0], (8, 8), torch.float16)
    timers = {"eager": race.Timer("CUDA graph replay", lambda seconds: 1.0)}
    made = race._result(row, "eager", {"eager": [5.0] * 8}, {}, 10.0, timers)
    assert made["us"] is None
    assert made["note"] == "rejected: 2.00 of the measured limit"
    honest = race._result(row, "eager", {"eager": [20.0] * 8}, {}, 10.0, timers)
    assert honest["us"] == 20.0
    assert honest["share_of_limit"] == 0.5


def test_every_row_s_inputs_fit_its_reference_and_a_cut_row_keeps_all_other_sizes() -> None:
    for family in FAMILIES:
        size = kernels._shrunk(Row(family, family.sizes[0], torch.bfloat16)).size
        row = Row(family, size, torch.bfloat16)
        whole, cut = row.inputs("cpu", 0), row.inputs("cpu", 0, rows=3)
        assert len(whole) == len(family.names)
        assert len(family.reference(*cut)) == len(family.reference(*whole))
        assert all(a.dim() == b.dim() for a, b in zip(whole, cut, strict=True))
        assert set(family.weights) <= set(family.names)
    titles = [r.title for r in rows((torch.float16, torch.bfloat16))]
    assert len(titles) == len(set(titles))


def test_outputs_differ_when_they_are_farther_than_rounding_in_norm() -> None:
    wanted = (torch.randn(100, 100).half(),)
    assert unlike((wanted[0] * 1.0005,), wanted) is None
    assert "of its norm" in str(unlike((wanted[0] * 1.01,), wanted))
    assert "expected" in str(unlike((wanted[0][:50],), wanted))


@dataclass
class Scripted:
    """Proposes given sources, one after another."""

    sources: list[str]
    name: str = "scripted"

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        return Candidate(self.sources[len(history)], self.name, None, {}) if len(history) < len(self.sources) else None


def test_only_what_is_right_is_timed_and_the_fastest_of_it_is_found(tmp_path: Path) -> None:
    row = Row(next(f for f in FAMILIES if f.task == "swiglu"), (40, 64), torch.float32)
    timed: list[str] = []

    def quickly(call: Callable[..., Any]) -> float:
        timed.append(sys.modules[call.__module__].__doc__ or "")
        return 10.0 - len(timed)

    body = "import torch\ndef kernel(gate, up):\n    return "
    right = "torch.nn.functional.silu(gate) * up"
    sources = [
        f'"""wrong"""\n{body}gate * up',
        f'"""raises"""\n{body}gate.nothing()',
        f'"""short"""\n{body}({right})[:3]',
        f'"""slow"""\n{body}{right}',
        f'"""fast"""\nLABEL = "mine"\n{body}({right},)',
    ]
    search = Search(row, as_task(row, row.inputs("cpu", 0), "cpu"), tmp_path, quickly)
    found = search.run([Scripted(sources)], seconds=60)
    assert timed == ["slow", "fast"]
    assert found.label == "mine"
    assert found.source is not None
    assert found.source.startswith('"""fast"""')
    assert [type(us) for _, _, us in found.tried] == [str, str, str, float, float]


def test_rows_of_the_same_environment_are_kept_and_others_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kernels.json"
    measured: list[str] = []

    def fake(row: Row, *_: Any) -> list[dict[str, Any]]:
        measured.append(row.title)
        return [result(row.family.task, "ours", 1.0) | {"shape": row.shape, "dtype": row.dtype_name}]

    def run(*more: str) -> list[str]:
        measured.clear()
        monkeypatch.setattr(sys, "argv", ["kernels.py", "--device", "cpu", "--out", str(out), "--only", "sum", *more])
        assert kernels.main() == 0
        return list(measured)

    monkeypatch.setattr(kernels, "measured", fake)
    monkeypatch.setattr(kernels, "_line", lambda *_: "")
    first = run()
    assert len(first) == len(set(first)) == 4
    assert run() == []
    assert run("--fresh") == first
    assert run("--fresh", "--only", "swiglu", "add+rmsnorm") == [*run("--fresh", "--only", "add+", "swi")]
    assert {title.split()[0] for title in run("--fresh", "--only", "swiglu", "--only", "add+rmsnorm")} == {
        "sum", "swiglu", "add+rmsnorm",
    }  # fmt: skip
    out.unlink()
    assert run() == first
    body = json.loads(out.read_text())
    assert len(body["rows"]) == 4
    out.write_text(json.dumps(body | {"environment": {"device": "another"}}))
    assert run("--seconds", "-1") == []
    assert run() == first
    assert "another environment" in capsys.readouterr().err


def test_kernels_that_are_interpreted_meet_an_interpreter_that_computes_in_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repaired: list[bool] = []
    monkeypatch.setattr(kernels, "_repair_interpreter", lambda: repaired.append(True))
    arguments = ["--device", "cpu", "--out", str(tmp_path / "kernels.json"), "--only", "nothing is called so"]
    monkeypatch.setattr(sys, "argv", ["kernels.py", *arguments])
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert kernels.main() == 0
    assert not repaired
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert kernels.main() == 0
    assert repaired
