"""Turn a Report into the parts of its page that are words and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from ...optimizer.verdict import Interval
from ..results import Check, OpRow, Report, TaskStory
from . import claims, races
from .figures import (
    MISSING,
    TIMES,
    bounds,
    clock,
    counted,
    one_line,
    percent,
    ratio,
    scientific,
    time_us,
)
from .highlight import highlight
from .markup import Markup, breakable, element, join


@dataclass(frozen=True)
class Head:
    """A column's head. number: right-aligned, tabular figures; sort: the page may sort by it."""

    text: str
    number: bool = False
    sort: bool = False
    unit: str = ""


def cell(text: str, *, number: bool = False, value: float | None = None, **more: str | bool | None) -> Markup:
    """Return a table cell; `value` is what sorting goes by where the text is not."""
    classes = " ".join(c for c in ("num" if number else "", str(more.pop("class_", "") or "")) if c)
    return element("td", text, class_=classes or None, data_v=None if value is None else f"{value:.9g}", **more)


def table(heads: Sequence[Head], rows: Iterable[Sequence[str]], caption: str, *, class_: str | None = None) -> Markup:
    """Return a real table in a frame that scrolls sideways on its own; each row is a sequence of cells."""
    top = [
        element(
            "th",
            head.text,
            *([element("small", head.unit)] if head.unit else []),
            scope="col",
            class_="num" if head.number else None,
            data_sort=head.sort,
        )
        for head in heads
    ]
    body = [element("tr", *cells) for cells in rows]
    made = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *top)),
        element("tbody", *body),
        class_=class_,
    )
    return element("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)


def prose(text: str, class_: str | None = None) -> Markup:
    return element("p", text, class_=class_)


def whole_model(report: Report) -> Markup:
    """Return every arm of every call."""
    heads = [Head(text, number=text not in ("call", "arm")) for text in races.HEADS]
    rows = (
        [cell(text, number=head.number) for head, text in zip(heads, texts, strict=True)]
        for texts in races.lines(report, times=TIMES)
    )
    return table(heads, rows, "Time of a whole step")


def per_op(report: Report) -> Markup:
    """Return the per-op table, sortable where the page's script runs."""
    if not report.rows:
        return prose("No region of this model became a task.", "empty")
    heads = (
        Head("task, module and ops", sort=True),
        Head("calls", number=True, sort=True),
        Head("before", number=True, sort=True, unit="µs"),
        Head("share", number=True, sort=True),
        Head("after", number=True, sort=True, unit="µs"),
        Head("vs eager", number=True, sort=True),
        Head("vs Inductor", number=True, sort=True),
        Head("floor", number=True, sort=True, unit="µs"),
        Head("model gain", number=True, sort=True),
        Head("outcome", sort=True),
    )
    rows = (_op_cells(number, row) for number, row in enumerate(report.rows, 1))
    return table(heads, rows, "Microseconds a step, all calls together; 99% intervals", class_="ops")


def _op_cells(number: int, row: OpRow) -> tuple[Markup, ...]:
    name = join((element("span", str(number), class_="key"), " ", element("b", breakable(one_line(row.task)))))
    what = join(
        (
            name,
            element("span", breakable(claims.site(row)), class_="sub"),
            element("span", claims.ops(row), class_="sub code"),
        )
    )
    reason = element("span", one_line(row.reason), class_="sub") if row.reason else ""
    tried = element("span", counted(row.attempts, "attempt"), class_="muted")
    ended = element("span", claims.OUTCOMES[row.outcome], class_=f"outcome {row.outcome.replace(' ', '-')}")
    return (
        element("td", what, data_v=f"{number}"),
        cell(f"{row.calls:,}", number=True, value=row.calls),
        cell(time_us(row.before_us), number=True, value=row.before_us),
        cell(percent(row.share), number=True, value=row.share),
        cell(time_us(row.after_us), number=True, value=row.after_us),
        _interval_cell(row.speedup_eager),
        _interval_cell(row.speedup_inductor),
        cell(time_us(row.floor_us), number=True, value=row.floor_us),
        _interval_cell(row.model_gain, fine=True),
        element("td", ended, ", ", tried, reason, class_="why"),
    )


def _interval_cell(interval: Interval | None, *, fine: bool = False) -> Markup:
    if interval is None:
        return cell(MISSING, number=True)
    spread = element("span", bounds(interval, fine=fine), class_="sub")
    text = join((ratio(interval.median, fine=fine, times=TIMES), spread))
    return cell(text, number=True, value=interval.median)


def sources(number: int, story: TaskStory) -> Markup:
    """Return reference and kernel side by side, folded away until they are asked for."""
    right = (
        element("pre", element("code", highlight(story.kernel)))
        if story.kernel is not None
        else prose("No kernel of ours stands here.", "empty")
    )
    left = element("pre", element("code", highlight(story.reference)))
    pair = element(
        "div",
        element("div", element("h4", "reference"), left),
        element("div", element("h4", "kernel"), right),
        class_="pair",
    )
    lines = counted(len(story.kernel.splitlines()), "line") if story.kernel is not None else "no kernel"
    key = element("span", str(number), class_="key")
    summary = element(
        "summary", key, " ", element("b", one_line(story.task)), " ", element("span", lines, class_="muted")
    )
    return element("details", summary, pair)


def checks(report: Report) -> Markup:
    """Return each verification input with every leaf of the output tree."""
    if not report.checks:
        return prose("No check has run.", "empty")
    heads = (
        Head("input"),
        Head("result"),
        Head("leaf"),
        Head("patched", number=True),
        Head("eager", number=True),
        Head("max abs", number=True),
        Head("cosine", number=True),
        Head("KL", number=True),
        Head("same top-1", number=True),
    )
    rows = (cells for check in report.checks for cells in _check_rows(check))
    return table(heads, rows, "Relative error in norm to the model in fp32")


def _check_rows(check: Check) -> Iterable[tuple[Markup, ...]]:
    name = element(
        "td", one_line(check.name), element("span", one_line(check.detail), class_="sub") if check.detail else ""
    )
    kl, top1 = cell(scientific(check.kl), number=True), cell(percent(check.top1), number=True)
    if not check.leaves:
        yield (name, _result(check.passed), *[cell(MISSING, number=True)] * 5, kl, top1)
    leaves, more = claims.worst_leaves(check)
    for number, leaf in enumerate(leaves):
        kind = f"{leaf.dtype} {list(leaf.shape)}"
        yield (
            name if number == 0 else cell(""),
            _result(check.passed and leaf.passed if number == 0 else leaf.passed),
            element("td", one_line(leaf.path), element("span", kind, class_="sub whole-line")),
            cell(scientific(leaf.error), number=True),
            cell(scientific(leaf.eager_error), number=True),
            cell(scientific(leaf.max_abs), number=True),
            cell(f"{leaf.cosine:.5f}", number=True),
            kl if number == 0 else cell(""),
            top1 if number == 0 else cell(""),
        )
    if more:
        words = f"and {counted(more, 'leaf', 'leaves')} more, all passed"
        yield (cell(""), _result(True), cell(words, class_="muted", colspan="7"))


def _result(passed: bool) -> Markup:
    return cell("ok" if passed else "failed", class_="ok" if passed else "bad")


def engagement(report: Report) -> Markup:
    """Return whether each kernel ran, and what its guard sent back to the original ops."""
    if not report.engagement:
        return prose("Nothing was swapped in, so there is nothing to count.", "empty")
    heads = (
        Head("task"),
        Head("sites", number=True),
        Head("kernel calls", number=True),
        Head("fallbacks", number=True),
        Head("why it fell back"),
    )
    rows = (
        (
            cell(one_line(e.task)),
            cell(f"{e.sites:,}", number=True),
            cell(
                f"{e.kernel_calls:,}" if e.kernel_calls else "0, never ran",
                number=True,
                class_="" if e.kernel_calls else "bad",
            ),
            cell(f"{e.fallback_calls:,}", number=True),
            cell("; ".join(f"{one_line(why)} ({times:,})" for why, times in e.fallback_reasons.items())),
        )
        for e in report.engagement
    )
    return table(heads, rows, "Calls while verifying and measuring")


def skipped(report: Report) -> Markup:
    """Return what was hot and became no task, and the breaks in the captured graph."""
    if not (report.skipped or report.breaks):
        return prose("Nothing: all that was hot became a task, and the graph has no breaks.", "empty")
    parts = []
    if report.skipped:
        rows = (
            (
                cell(percent(s.share), number=True),
                cell(one_line(s.what)),
                cell(one_line(s.module) or MISSING, class_="code"),
                cell(one_line(s.reason)),
            )
            for s in sorted(report.skipped, key=lambda s: -s.share)
        )
        parts.append(
            table((Head("share", number=True), Head("what"), Head("module"), Head("reason")), rows, "Left out")
        )
    if report.breaks:
        parts.append(prose(f"{counted(len(report.breaks), 'graph break')}; nothing is fused across one:"))
        parts.append(element("ul", *(element("li", one_line(b)) for b in report.breaks)))
    return join(parts)


def loading(report: Report, folder: PurePath | None) -> Markup:
    """Return the lines that put the result to use."""
    if report.patched is None:
        return prose("Nothing was exported: there is no kernel to put into a model.", "empty")
    ways = (
        join((element("h4", needs), element("pre", element("code", highlight(code)))))
        for needs, code in claims.loading(report, folder)
    )
    return join(ways)


def environment(report: Report) -> Markup:
    """Return versions, limits and times as one list of names and values."""
    stages = ", ".join(f"{one_line(stage)} {clock(seconds)}" for stage, seconds in report.seconds_by_stage.items())
    rates = [f"copy {report.copy_gb_s:.1f} GB/s"]
    rates += [f"matmul {one_line(kind)} {rate:.2f} TFLOP/s" for kind, rate in report.matmul_tflop_s.items()]
    facts = {
        "command": report.command,
        "started": report.started,
        "took": f"{clock(report.seconds)}: {stages}" if stages else clock(report.seconds),
        "device": report.device,
        "dtype": report.dtype,
        "the rest of the model": claims.TAILS[report.tail],
        "measured limits": ", ".join(rates),
        "load while timing": ", ".join(f"{race.load_average:.2f}" for race in report.end_to_end) or MISSING,
        **report.environment,
    }
    rows = (
        join(
            (
                element("dt", one_line(name)),
                element("dd", one_line(value), class_="code" if name == "command" else None),
            )
        )
        for name, value in facts.items()
    )
    return element("dl", *rows)
