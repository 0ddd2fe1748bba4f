"""The sweep's rows as Markdown: counts, what failed and why, and one line a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from .row import OUTCOMES

_MEANING = {
    "patched": "swapped, verified on as many inputs as it says below, taken out again: outputs equal",
    "nothing": "it runs and was captured, but holds no region worth a kernel",
    "not extractable": "it runs, but its work cannot be cut out",
    "not built": "no small instance could be made or run here: nothing is known",
    "failed": "an error, a hang or a crash of ours",
    "wrong": "the patched model gave another answer",
}


def table(kept: Mapping[str, Any]) -> str:
    """Return the page."""
    rows = [kept["rows"][name] for name in sorted(kept["rows"])]
    versions = kept["versions"]
    counts = Counter(row["outcome"] for row in rows)
    lines = [
        "# The sweep",
        "",
        "Every model type that transformers registers for its Auto classes, small and with random weights, and models",
        "from elsewhere: profiled, captured, every region swapped for a stand-in (its own reference: no bit may",
        "change), verified, and taken out again. Made by `python benchmarks/sweep.py`; the rows are in",
        "[`benchmarks/results/sweep.json`](../benchmarks/results/sweep.json).",
        "",
        f"torch {versions['torch']}, transformers {versions['transformers']}, {kept['made']}; on",
        "; ".join(kept["machines"]),
        "",
        f"{len(rows)} of {kept['of']} models tried so far.",
        "",
        "| outcome | models | means |",
        "|---|---|---|",
        *(f"| {name} | {counts[name]} | {_MEANING[name]} |" for name in OUTCOMES),
        f"| all | {len(rows)} | |",
        "",
    ]
    for outcome in ("wrong", "failed", "not extractable", "nothing", "not built"):
        lines += _reasons(outcome, [row for row in rows if row["outcome"] == outcome])
    return "\n".join([*lines, "## Models", "", *_models(rows), ""])


def _reasons(outcome: str, rows: list[Any]) -> Iterable[str]:
    if not rows:
        return []
    lines = [f"## {outcome.capitalize()}, and why", "", "| model | stage | why |", "|---|---|---|"]
    lines += [f"| {_short(row)} | {row['stage']} | {_cell(row['why'])} |" for row in rows]
    return [*lines, ""]


def _models(rows: list[Any]) -> Iterable[str]:
    yield "| model | class | outcome | graphs | breaks | tasks | regions | kernel calls | checks | bitwise | s |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        facts = row["facts"]
        breaks = len(facts["breaks"]) if "breaks" in facts else "-"
        known = [facts.get(name, "-") for name in ("tasks", "swapped", "kernel_calls", "checks")]
        equal = {True: "yes", False: "no"}.get(facts.get("bitwise"), "-")
        cells = [_short(row), facts.get("class", "-"), row["outcome"], facts.get("graphs", "-"), breaks, *known, equal]
        yield "| " + " | ".join(map(str, [*cells, row["seconds"].get("all", "-")])) + " |"


def _short(row: Mapping[str, Any]) -> str:
    return str(row["name"]).removeprefix("transformers:")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:300]
