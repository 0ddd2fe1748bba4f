"""Print a Report on a terminal, laid out for the console's width, so that no line wraps into its neighbour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ...optimizer.verdict import Interval
from ..results import Check, OpRow, Report
from . import claims, races
from .figures import (
    MISSING,
    bounds,
    clock,
    counted,
    one_line,
    percent,
    ratio,
    scientific,
    time_us,
)

WIDE = 132  # from here on an interval fits beside its ratio
NARROW = 96  # below this a task's name has a line of its own
STYLE = {"kernel": "green", "inductor": "cyan", "left alone": "dim", "dropped": "yellow"}


@dataclass(frozen=True)
class _Column:
    head: str
    unit: str
    width: int


def terminal(report: Report, console: Console, folder: PurePath | None = None) -> None:
    """Print the report: headline, whole model, per op, what was skipped, checks, engagement, files, how to load.

    folder: the run's directory, for the paths shown.
    """
    _headline(report, console)
    _whole_model(report, console)
    _per_op(report, console)
    _skipped(report, console)
    _checks(report, console)
    _engagement(report, console)
    _files(report, console, folder)


def _headline(report: Report, console: Console) -> None:
    sound = claims.is_verified(report) or claims.is_no_gain(report)
    console.print(Text(claims.headline(report), style="bold" if sound else "bold red"))
    _prose(console, claims.circumstances(report), indent=0, style="dim")
    for line in claims.standing(report):
        _prose(console, line, indent=0, style="yellow")
    if report.predicted_speedup is not None and (measured := races.overall(report, "eager")):
        predicted = ratio(report.predicted_speedup)
        line = f"predicted by Amdahl from the judge's figures {predicted}, measured {ratio(measured.median)}"
        _prose(console, line, indent=0, style="dim")


def _whole_model(report: Report, console: Console) -> None:
    if not report.end_to_end:
        return
    _section(console, "Whole model", claims.TAILS[report.tail])
    table = _table(expand=False)
    for head in races.HEADS:
        right = head not in ("call", "arm")
        table.add_column(head, justify="right" if right else "left", no_wrap=head != "call", overflow="fold")
    for cells in races.lines(report):
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)


def _per_op(report: Report, console: Console) -> None:
    _section(console, "Per op", "µs a step, all calls together; brackets are 99% intervals")
    if not report.rows:
        _prose(console, "No region became a task.", indent=2)
        return
    columns = _columns(console.width)
    for text in _heads(columns, console.width):
        console.print(text, no_wrap=True, overflow="crop", crop=True)
    for number, row in enumerate(report.rows, 1):
        for text in _row_lines(number, row, columns, console.width):
            console.print(text, no_wrap=True, overflow="crop", crop=True)
        _prose(console, f"{claims.site(row)}: {claims.ops(row)}", indent=3, style="dim")
        outcome = Text(claims.OUTCOMES[row.outcome], style=STYLE[row.outcome])
        outcome.append(f": {one_line(row.reason)}" if row.reason else "", style="not dim")
        outcome.append(f" ({counted(row.attempts, 'attempt')})", style="dim")
        console.print(Padding(outcome, (0, 0, 0, 3), expand=False))


def _columns(width: int) -> tuple[_Column, ...]:
    spread = 18 if width >= WIDE else 10
    gain = 21 if width >= WIDE else 12
    return (
        _Column("calls", "", 6),
        _Column("before", "µs", 8),
        _Column("share", "", 6),
        _Column("after", "µs", 8),
        _Column("vs eager", "", spread),
        _Column("vs Inductor", "", max(12, spread)),
        _Column("floor", "µs", 7),
        _Column("model gain", "", gain),
    )


def _heads(columns: Sequence[_Column], width: int) -> Iterator[Text]:
    name = "  task" if width >= NARROW else ""
    yield _line(name, columns, [c.head for c in columns], width, style="dim")
    yield _line("", columns, [c.unit for c in columns], width, style="dim")


def _row_lines(number: int, row: OpRow, columns: Sequence[_Column], width: int) -> Iterator[Text]:
    name = f"{number:>2} {one_line(row.task)}"
    beside = width >= WIDE
    cells = [
        f"{row.calls:,}",
        time_us(row.before_us),
        percent(row.share),
        time_us(row.after_us),
        _gain(row.speedup_eager, beside=beside),
        _gain(row.speedup_inductor, beside=beside),
        time_us(row.floor_us),
        _gain(row.model_gain, beside=beside, fine=True),
    ]
    if width < NARROW or len(name) > _left(columns, width):
        yield Text(name, style="bold")
        name = ""
    yield _line(name, columns, cells, width)
    if not beside and (row.speedup_eager or row.speedup_inductor or row.model_gain):
        spreads = [_range(row.speedup_eager), _range(row.speedup_inductor), "", _range(row.model_gain, fine=True)]
        yield _line("", columns, [""] * 4 + spreads, width, style="dim")


def _gain(interval: Interval | None, *, beside: bool, fine: bool = False) -> str:
    if interval is None:
        return MISSING
    median = ratio(interval.median, fine=fine)
    return f"{median} {bounds(interval, fine=fine)}" if beside else median


def _range(interval: Interval | None, *, fine: bool = False) -> str:
    return bounds(interval, fine=fine).strip("[]").replace(", ", MISSING)


def _line(name: str, columns: Sequence[_Column], cells: Sequence[str], width: int, style: str = "") -> Text:
    """Return one line: the name at the left, the columns right-aligned against the edge."""
    text = Text(name.ljust(_left(columns, width)), style="" if style else "bold")
    for column, cell in zip(columns, cells, strict=True):
        text.append(" " * _gap(width) + cell.rjust(column.width), style=style or "not bold")
    return text


def _left(columns: Sequence[_Column], width: int) -> int:
    """Return how wide a name may be beside the columns."""
    return max(0, width - sum(column.width + _gap(width) for column in columns))


def _gap(width: int) -> int:
    return 2 if width >= WIDE else 1


def _skipped(report: Report, console: Console) -> None:
    if not (report.skipped or report.breaks):
        return
    _section(console, "What was skipped and why", "hot, but no task")
    for skipped in sorted(report.skipped, key=lambda s: -s.share):
        line = Text(f"{percent(skipped.share):>7}  ")
        line.append(one_line(skipped.what), style="bold")
        line.append(f" in {one_line(skipped.module)}" if skipped.module else "", style="dim")
        line.append(f": {one_line(skipped.reason)}")
        _hanging(console, line, 9)
    for broken in report.breaks:
        _hanging(console, Text(f"{'break':>7}  {one_line(broken)}"), 9)


def _hanging(console: Console, text: Text, indent: int) -> None:
    """Print a text whose first `indent` columns are a margin that its further lines leave empty."""
    lines = text[indent:].wrap(console, max(20, console.width - indent))
    for number, line in enumerate(lines):
        console.print((text[:indent] if number == 0 else Text(" " * indent)) + line, no_wrap=True, crop=False)


def _checks(report: Report, console: Console) -> None:
    _section(console, "Checks", "relative error in norm to the model in fp32, worst leaf of the output tree")
    if not report.checks:
        _prose(console, "None has run.", indent=2)
        return
    table = _table()
    table.add_column("", no_wrap=True)
    table.add_column("input", overflow="fold", ratio=1)
    for head in ("patched", "eager", "cosine", "KL", "same top-1"):
        table.add_column(head, justify="right", no_wrap=True)
    for check in report.checks:
        name = Text(one_line(check.name))
        name.append(f"  {one_line(check.detail)}" if check.detail else "", style="dim")
        table.add_row(
            Text("ok" if check.passed else "FAIL", style="green" if check.passed else "bold red"),
            name,
            *_figures(check),
        )
    console.print(table)


def _figures(check: Check) -> tuple[str, ...]:
    worst = max(check.leaves, key=lambda leaf: leaf.error, default=None)
    return (
        scientific(worst.error if worst else None),
        scientific(worst.eager_error if worst else None),
        f"{min(leaf.cosine for leaf in check.leaves):.5f}" if check.leaves else MISSING,
        scientific(check.kl),
        percent(check.top1),
    )


def _engagement(report: Report, console: Console) -> None:
    if not report.engagement:
        return
    _section(console, "Engagement", "calls while verifying and measuring; a fallback is answered by the original ops")
    table = _table()
    table.add_column("task", no_wrap=True)
    for head in ("sites", "kernel calls", "fallbacks"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", ratio=1)
    for entry in report.engagement:
        reasons = "; ".join(f"{one_line(why)} ({times:,})" for why, times in entry.fallback_reasons.items())
        style = "" if entry.kernel_calls else "bold red"
        cells = (
            one_line(entry.task),
            str(entry.sites),
            f"{entry.kernel_calls:,}",
            f"{entry.fallback_calls:,}",
            reasons,
        )
        table.add_row(*(Text(cell, style=style) for cell in cells))
    console.print(table)


def _files(report: Report, console: Console, folder: PurePath | None) -> None:
    _section(console, "Files", clock(report.seconds) + " in all: " + _stages(report) if report.seconds_by_stage else "")
    if report.patched is None:
        _prose(console, "Nothing was exported: there is no kernel to put into a model.", indent=2)
    else:
        run = str(((folder or PurePath()) / one_line(report.patched)).parent)
        _prose(console, f"{run}: report.html, report.md, report.json, tasks/, ledger.db, patched/", indent=2)
    for purpose, code in claims.loading(report, folder):
        _prose(console, purpose, indent=2, style="dim")
        for line in code.splitlines():
            console.print(Text(f"    {line}"), soft_wrap=True)
    for note in report.notes:
        _prose(console, f"Note: {one_line(note)}", indent=2, style="yellow")


def _stages(report: Report) -> str:
    return ", ".join(f"{one_line(stage)} {clock(seconds)}" for stage, seconds in report.seconds_by_stage.items())


def _table(*, expand: bool = True) -> Table:
    return Table(box=None, padding=(0, 0, 0, 2), expand=expand, header_style="dim", pad_edge=True)


def _section(console: Console, title: str, subtitle: str) -> None:
    head = Text(f"\n{title}", style="bold")
    head.append(f"  {subtitle}" if subtitle else "", style="not bold dim")
    console.print(head)


def _prose(console: Console, line: str, *, indent: int, style: str = "") -> None:
    console.print(Padding(Text(one_line(line), style=style), (0, 0, 0, indent), expand=False))
