"""Turn a profile into tables for a terminal, or into the same lines as plain JSON."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..models.record import Record
from .recording import CallProfile, Profile, Row

if TYPE_CHECKING:
    from rich.table import Table

SortBy = Literal["self", "calls", "headroom", "module"]
GroupBy = Literal["op", "module", "shape", "row"]
SORTS: tuple[SortBy, ...] = ("self", "calls", "headroom", "module")
GROUPS: tuple[GroupBy, ...] = ("shape", "op", "module", "row")
OTHER = "other"

# Columns of figures: header, width, text of a line. Fixed widths, so that the names get what is left.
_FIGURES: tuple[tuple[str, int, Callable[[Line], str]], ...] = (
    ("calls", 5, lambda line: str(line.calls) if line.calls else ""),
    ("self us", 9, lambda line: f"{line.self_us:,.0f}"),
    ("step", 6, lambda line: f"{100 * line.share:.1f}%"),
    ("cumul.", 6, lambda line: f"{100 * line.cumulative:.1f}%"),
    ("floor us", 9, lambda line: "-" if line.floor_us is None else f"{line.floor_us:,.0f}"),
    ("headroom", 8, lambda line: "-" if line.headroom is None else f"{line.headroom:.{int(line.headroom < 1000)}f}x"),
    ("bound by", 8, lambda line: line.source),
)
# What gives way first on a narrow terminal: headroom tells the floor.
_LEFT_OUT = ("bound by", "floor us")
_GAP = 2


@dataclass(frozen=True)
class Line(Record):
    """One line of a table: rows that belong together. share, cumulative: of the whole step, 0 to 1.

    module: the path where all rows have one, else how many modules there are. floor_us: None as soon as one of the rows
    that took time has none, except for overhead around ops (composites, views), whose floor is nothing.
    """

    op: str
    module: str
    shapes: str
    calls: int
    self_us: float
    share: float
    cumulative: float
    floor_us: float | None
    headroom: float | None
    source: str


def lines_of(
    call: CallProfile, *, group_by: GroupBy = "shape", sort_by: SortBy = "self", row_limit: int | None = None
) -> tuple[Line, ...]:
    """Return the lines of a call's table: groups in the order asked for, then what the limit cut off, then "other".

    All lines together are the whole step.
    """
    groups: dict[Hashable, list[Row]] = {}
    for row in call.rows:
        groups.setdefault(_key(row, group_by), []).append(row)
    lines = sorted((_line(rows, group_by, call) for rows in groups.values()), key=lambda line: _order(line, sort_by))
    shown = lines if row_limit is None else lines[:row_limit]
    rest = lines[len(shown) :]
    if rest:
        shown = [
            *shown,
            _plain_line(f"{len(rest)} more", sum(x.self_us for x in rest), sum(x.calls for x in rest), call),
        ]
    shown = [*shown, _plain_line(OTHER, call.other_us, 0, call)]
    return tuple(_with_cumulative(shown))


def tables(
    profile: Profile,
    *,
    width: int,
    group_by: GroupBy = "shape",
    sort_by: SortBy = "self",
    row_limit: int | None = None,
) -> Iterable[Table]:
    """Yield one table for each call, at most `width` columns wide."""
    for call in profile.calls:
        yield _table(
            call, profile, lines_of(call, group_by=group_by, sort_by=sort_by, row_limit=row_limit), width, group_by
        )


def to_json(
    profile: Profile, *, group_by: GroupBy = "shape", sort_by: SortBy = "self", row_limit: int | None = None
) -> dict[str, Any]:
    """Return what the tables show, and the figures around them, as plain JSON."""
    plain = profile.to_dict()
    for call, shown in zip(profile.calls, plain["calls"], strict=True):
        lines = lines_of(call, group_by=group_by, sort_by=sort_by, row_limit=row_limit)
        shown["rows"] = [line.to_dict() for line in lines]
        shown["coverage"] = call.coverage
    return {**plain, "group_by": group_by, "sort_by": sort_by}


def short(op: str) -> str:
    """Return an op's name without the namespace everything lives in."""
    return op.removeprefix("aten::")


def _key(row: Row, group_by: GroupBy) -> Hashable:
    if group_by == "op":
        return row.phase, row.op
    if group_by == "module":
        return row.module, row.module_class
    if group_by == "shape":
        return row.phase, row.op, row.module_class, row.shapes, row.dtypes, row.strides
    return row


def _line(rows: Sequence[Row], group_by: GroupBy, call: CallProfile) -> Line:
    self_us = sum(row.self_us for row in rows)
    modules, ops = sorted({row.module for row in rows}), {row.op for row in rows}
    classes = sorted({row.module_class for row in rows})
    floor_us = _floor(rows)
    name = short(rows[0].op) if len(ops) == 1 else f"{len(ops)} ops"
    phases = {row.phase for row in rows}
    if len(phases) == 1 and "forward" not in phases:
        name = f"{name} ({rows[0].phase})"
    if len(modules) == 1:
        where = f"{modules[0] or '(model)'} ({classes[0]})" if classes[0] else ""
    else:
        where = f"{classes[0]} x{len(modules)}" if len(classes) == 1 else f"{len(modules)} modules"
    return Line(
        op=name,
        module=where,
        shapes=_shapes(rows[0]) if group_by in ("shape", "row") else "",
        calls=sum(row.calls for row in rows),
        self_us=self_us,
        share=call.share(self_us),
        cumulative=0.0,
        floor_us=floor_us,
        headroom=self_us / floor_us if floor_us else None,
        source=max(rows, key=lambda row: row.self_us).source,
    )


def _floor(rows: Sequence[Row]) -> float | None:
    counted = [row for row in rows if row.source != "overhead"]
    if not counted or any(row.floor_us is None for row in counted):
        return None
    return sum(row.floor_us or 0.0 for row in counted)


def _plain_line(name: str, self_us: float, calls: int, call: CallProfile) -> Line:
    return Line(name, "", "", calls, self_us, call.share(self_us), 0.0, None, None, "")


def _with_cumulative(lines: Sequence[Line]) -> Iterable[Line]:
    total = 0.0
    for line in lines:
        total += line.share
        yield Line(**{**line.to_dict(), "cumulative": total})


def _order(line: Line, sort_by: SortBy) -> tuple[Any, ...]:
    if sort_by == "calls":
        return -line.calls, -line.self_us
    if sort_by == "headroom":
        return -(line.headroom or 0.0), -line.self_us
    if sort_by == "module":
        return line.module, -line.self_us
    return (-line.self_us,)


def _shapes(row: Row) -> str:
    text = " ".join("x".join(map(str, shape)) or "scalar" for shape in row.shapes)
    kinds = sorted(set(row.dtypes))
    return f"{text} {'/'.join(kinds)}".strip()


def _table(call: CallProfile, profile: Profile, lines: Sequence[Line], width: int, group_by: GroupBy) -> Table:
    from rich.table import Table

    left_out = _LEFT_OUT if width < 100 else _LEFT_OUT[:1] if width < 120 else ()
    figures = [figure for figure in _FIGURES if figure[0] not in left_out]
    names = [("op", 0.30), ("module", 0.35), ("shapes", 0.35)]
    if group_by == "op":
        names = [("op", 0.6), ("module", 0.4)]
    elif group_by == "module":
        names = [("module", 0.7), ("op", 0.3)]
    left = max(30, width - sum(size + _GAP for _, size, _ in figures) - _GAP * len(names))
    table = Table(
        title=_title(call, profile, width), caption=_caption(call), box=None, padding=(0, _GAP, 0, 0), width=width
    )
    table.title_justify = table.caption_justify = "left"
    needs = {name: max([len(name), *(len(getattr(line, name)) for line in lines)]) for name, _ in names}
    sizes = _sizes(left, names, needs)
    for name, _ in names:
        table.add_column(name, width=sizes[name], no_wrap=True)
    for header, size, _ in figures:
        table.add_column(header, width=size, justify="right", no_wrap=True)
    for line in lines:
        texts = [(_fit_path if name == "module" else _fit)(getattr(line, name), sizes[name]) for name, _ in names]
        quiet = line.op == OTHER or line.op.endswith(" more")
        if quiet and group_by == "module":
            texts = [texts[1], ""]
        table.add_row(*texts, *(text(line) for _, _, text in figures), style="dim" if quiet else None)
    return table


def _sizes(left: int, names: Sequence[tuple[str, float]], needs: dict[str, int]) -> dict[str, int]:
    """Share `left` columns among the names: their parts, and what one does not need goes to those that do."""
    sizes = {name: min(needs[name], int(left * part)) for name, part in names}
    for name, _ in names:
        sizes[name] = min(needs[name], sizes[name] + left - sum(sizes.values()))
    return sizes


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _fit_path(text: str, width: int) -> str:
    """Shorten "path (Class)": the class goes first, then the front of the path, whose end tells more."""
    if len(text) > width and text.endswith(")"):
        text = text[: text.rindex(" (")]
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def _title(call: CallProfile, profile: Profile, width: int) -> str:
    figures = f" on {profile.device}, {call.name}: {call.step_us / 1e3:.2f} ms a step"
    return _fit_path(profile.model, max(20, width - len(figures))) + figures


def _caption(call: CallProfile) -> str:
    parts = [
        f"recorded step {call.recorded_us / 1e3:.2f} ms, {100 * call.coverage:.1f}% in ops",
        f"{call.launches} launches",
        f"peak {call.peak_bytes / 2**20:,.0f} MiB",
    ]
    if call.busy_share < 1.0:
        parts.insert(1, f"device busy {100 * call.busy_share:.0f}%")
    return "; ".join(parts)
