"""Turn a Report into Markdown that reads well raw and rendered."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from ..results import Check, Report
from . import claims, races
from .figures import MISSING, clock, counted, one_line, percent, ratio, scientific, time_us, with_bounds

# No more than GitHub's dialect needs: names_like_this and [1.40, 1.45] must stay readable in the raw text.
_SPECIAL = re.compile(r"([\\`*|~]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|^[#+-])")


def markdown(report: Report, folder: PurePath | None = None) -> str:
    """Return the report as one Markdown document; text from the model can neither break a table nor become HTML."""
    parts = [
        f"# {_text(claims.headline(report))}",
        _text(claims.circumstances(report)),
        *(f"> {_text(line)}" for line in claims.standing(report)),
        *_whole_model(report),
        *_per_op(report),
        *_ablation(report),
        *_checks(report),
        *_engagement(report),
        *_skipped(report),
        *_loading(report, folder),
        *_environment(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _whole_model(report: Report) -> Iterable[str]:
    if not report.end_to_end:
        return
    yield "## Whole model"
    yield (
        _text(claims.TAILS[report.tail]).capitalize()
        + ". Medians of interleaved blocks; brackets are 99% intervals of the ratio."
    )
    yield _table(
        [head if head in ("call", "arm") else f"{head} >" for head in races.HEADS],
        races.lines(report),
    )
    if report.predicted_speedup is not None:
        predicted = ratio(report.predicted_speedup)
        yield f"Amdahl's law, from the judge's figures for each task, predicted {predicted} over eager."


def _per_op(report: Report) -> Iterable[str]:
    yield "## Per op"
    if not report.rows:
        yield "No region became a task."
        return
    yield (
        "Microseconds a step, all calls together. Floor: the least time this machine allows. "
        "Model gain: the step without it over the step with it."
    )
    heads = (
        "#",
        "task",
        "module",
        "ops",
        "calls >",
        "before µs >",
        "share >",
        "after µs >",
        "vs eager >",
        "vs Inductor >",
        "floor µs >",
        "model gain >",
    )
    yield _table(
        (*heads, "outcome"),
        (
            (
                str(number),
                row.task,
                claims.site(row),
                claims.ops(row),
                f"{row.calls:,}",
                time_us(row.before_us),
                percent(row.share),
                time_us(row.after_us),
                with_bounds(row.speedup_eager),
                with_bounds(row.speedup_inductor),
                time_us(row.floor_us),
                with_bounds(row.model_gain, fine=True),
                f"{claims.outcome(row)} ({counted(row.attempts, 'attempt')})",
            )
            for number, row in enumerate(report.rows, 1)
        ),
    )


def _ablation(report: Report) -> Iterable[str]:
    if not report.ablations:
        return
    yield "## Ablation"
    yield _table(
        ("task", "left out >", "alone >", "predicted >", "kept", "reason"),
        (
            (
                a.task,
                with_bounds(a.leave_one_out, fine=True),
                with_bounds(a.add_one_in, fine=True),
                ratio(a.predicted, fine=True),
                "yes" if a.kept else "no",
                a.reason,
            )
            for a in report.ablations
        ),
    )


def _checks(report: Report) -> Iterable[str]:
    yield "## Checks"
    if not report.checks:
        yield "None has run."
        return
    yield "Relative error in norm to the model in fp32, for every leaf of the output tree."
    yield _table(
        (
            "input",
            "result",
            "leaf",
            "shape",
            "patched >",
            "eager >",
            "max abs >",
            "cosine >",
            "KL >",
            "same top-1 >",
            "detail",
        ),
        (cells for check in report.checks for cells in _check_rows(check)),
    )


def _check_rows(check: Check) -> Iterable[Sequence[str]]:
    result = "ok" if check.passed else "FAIL"
    if not check.leaves:
        yield (check.name, result, *[MISSING] * 6, scientific(check.kl), percent(check.top1), check.detail)
    leaves, more = claims.worst_leaves(check)
    for number, leaf in enumerate(leaves):
        yield (
            check.name if number == 0 else "",
            "ok" if leaf.passed else "FAIL",
            leaf.path,
            f"{leaf.dtype} {list(leaf.shape)}",
            scientific(leaf.error),
            scientific(leaf.eager_error),
            scientific(leaf.max_abs),
            f"{leaf.cosine:.5f}",
            scientific(check.kl) if number == 0 else "",
            percent(check.top1) if number == 0 else "",
            f"{check.detail}{'' if check.passed else ' (check failed)'}" if number == 0 else "",
        )
    if more:
        yield ("", "ok", f"and {counted(more, 'leaf', 'leaves')} more, all passed", *[""] * 8)


def _engagement(report: Report) -> Iterable[str]:
    if not report.engagement:
        return
    yield "## Engagement"
    yield _table(
        ("task", "sites >", "kernel calls >", "fallbacks >", "why"),
        (
            (
                e.task,
                str(e.sites),
                f"{e.kernel_calls:,}" if e.kernel_calls else "0: never ran",
                f"{e.fallback_calls:,}",
                "; ".join(f"{why} ({times:,})" for why, times in e.fallback_reasons.items()),
            )
            for e in report.engagement
        ),
    )


def _skipped(report: Report) -> Iterable[str]:
    if not (report.skipped or report.breaks):
        return
    yield "## Skipped and why"
    if report.skipped:
        ordered = sorted(report.skipped, key=lambda s: -s.share)
        yield _table(
            ("share >", "what", "module", "reason"), ((percent(s.share), s.what, s.module, s.reason) for s in ordered)
        )
    if report.breaks:
        yield "\n".join(f"- graph break: {_text(b)}" for b in report.breaks)


def _loading(report: Report, folder: PurePath | None) -> Iterable[str]:
    yield "## How to load the result"
    if report.patched is None:
        yield "Nothing was exported: there is no kernel to put into a model."
    for needs, code in claims.loading(report, folder):
        yield f"{needs}:"
        yield f"```python\n{code}\n```"


def _environment(report: Report) -> Iterable[str]:
    yield "## Environment"
    stages = ", ".join(f"{stage} {clock(seconds)}" for stage, seconds in report.seconds_by_stage.items())
    limits = [
        f"copy {report.copy_gb_s:.1f} GB/s",
        *(f"matmul {kind} {rate:.2f} TFLOP/s" for kind, rate in report.matmul_tflop_s.items()),
    ]
    facts = {
        "started": report.started,
        "took": f"{clock(report.seconds)}: {stages}" if stages else clock(report.seconds),
        "command": report.command,
        "measured limits": ", ".join(limits),
        **report.environment,
    }
    yield _table(("", ""), ((name, value) for name, value in facts.items()))
    if report.notes:
        yield "\n".join(f"- {_text(note)}" for note in report.notes)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a head that ends in ` >` aligns its column to the right."""
    lines = ["| " + " | ".join(h.removesuffix(" >") for h in heads) + " |"]
    lines.append("|" + "|".join("---:" if h.endswith(" >") else "---" for h in heads) + "|")
    lines += ["| " + " | ".join(_text(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", html.escape(one_line(text), quote=False))
