"""Tables of a hand-made profile: grouping, order, cumulative coverage, and lines that fit the terminal."""

from __future__ import annotations

import io
import itertools

import pytest
from rich.console import Console

from hotswap.profiler.recording import CallProfile, Limits, Profile, Row
from hotswap.profiler.table import GROUPS, SORTS, GroupBy, SortBy, lines_of, tables, to_json


def row(
    op: str, module: str, kind: str, self_us: float, floor_us: float | None, calls: int = 1, width: int = 64
) -> Row:
    shapes = ((8, width),)
    source = "overhead" if floor_us is None else "memory"
    return Row(op, module, kind, shapes, ("float32",), ((width, 1),), calls, self_us, floor_us, 1, 0, source)


@pytest.fixture
def call() -> CallProfile:
    rows = (
        row("aten::addmm", "encoder.layers.0.fc1", "Linear", 300.0, 100.0),
        row("aten::addmm", "encoder.layers.1.fc1", "Linear", 200.0, 100.0),
        row("aten::gelu", "encoder.layers.0.act", "GELU", 150.0, 10.0, calls=4),
        row("aten::addmm", "encoder.layers.0.fc2", "Linear", 100.0, 50.0, width=32),
        row("aten::linear", "encoder.layers.0.fc1", "Linear", 50.0, None),
    )
    return CallProfile("call", 1.0, rows, 900.0, (900.0,) * 5, 1000.0, 200.0, 1.0, 8, 2**20)


@pytest.fixture
def profile(call: CallProfile, limits: Limits) -> Profile:
    return Profile("model.py:make", "cpu", limits, (call,), ())


@pytest.mark.parametrize(("group_by", "sort_by"), list(itertools.product(GROUPS, SORTS)))
def test_in_every_view_the_lines_add_up_to_the_step_and_other_is_last(
    call: CallProfile, group_by: GroupBy, sort_by: SortBy
) -> None:
    lines = lines_of(call, group_by=group_by, sort_by=sort_by, row_limit=2)
    assert sum(line.self_us for line in lines) == call.recorded_us
    assert lines[-1].op == "other"
    assert lines[-1].cumulative == pytest.approx(1.0)
    assert [line.cumulative for line in lines] == sorted(line.cumulative for line in lines)


def test_equal_shapes_in_modules_of_one_class_are_one_line(call: CallProfile) -> None:
    first, *_ = lines_of(call, group_by="shape")
    assert (first.op, first.module, first.calls, first.self_us) == ("addmm", "Linear x2", 2, 500.0)
    assert (first.share, first.floor_us, first.headroom) == (0.5, 200.0, 2.5)


def test_grouping_by_op_and_by_module(call: CallProfile) -> None:
    by_op = lines_of(call, group_by="op")
    assert [(line.op, line.self_us) for line in by_op[:2]] == [("addmm", 600.0), ("gelu", 150.0)]
    by_module = lines_of(call, group_by="module")
    assert (by_module[0].module, by_module[0].op) == ("encoder.layers.0.fc1 (Linear)", "2 ops")
    # The overhead around a matmul has no floor and takes none away.
    assert (by_module[0].self_us, by_module[0].floor_us) == (350.0, 100.0)


@pytest.mark.parametrize(
    ("sort_by", "first"),
    [("self", "addmm"), ("calls", "gelu"), ("headroom", "gelu"), ("module", "gelu")],
)
def test_lines_come_in_the_order_asked_for(call: CallProfile, sort_by: SortBy, first: str) -> None:
    assert lines_of(call, group_by="row", sort_by=sort_by)[0].op == first


def test_what_a_limit_cuts_off_is_one_line(call: CallProfile) -> None:
    lines = lines_of(call, group_by="row", row_limit=3)
    assert [line.op for line in lines] == ["addmm", "addmm", "gelu", "2 more", "other"]
    assert lines[3].self_us == 150.0


def test_an_unknown_floor_of_real_work_is_not_guessed(call: CallProfile) -> None:
    unknown = row("mine::op", "m", "M", 10.0, None)
    grown = CallProfile(**{**vars(call), "rows": (*call.rows, Row(**{**vars(unknown), "source": "memory"}))})
    line = next(line for line in lines_of(grown, group_by="op") if line.op == "mine::op")
    assert (line.floor_us, line.headroom) == (None, None)


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("group_by", GROUPS)
def test_no_line_is_wider_than_the_terminal_and_figures_are_whole(
    profile: Profile, width: int, group_by: GroupBy
) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width)
    for table in tables(profile, width=width, group_by=group_by):
        console.print(table)
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    for figure in ("200", "20.0%", "100.0%", "recorded step 1.00 ms, 80.0% in ops"):
        assert figure in text
    # One line of the table is one line of text: nothing wraps.
    assert len(text.splitlines()) == 2 + len(lines_of(profile.calls[0], group_by=group_by)) + 1


def test_json_holds_the_lines_and_the_figures_around_them(profile: Profile) -> None:
    plain = to_json(profile, group_by="op", row_limit=1)
    (call,) = plain["calls"]
    assert [line["op"] for line in call["rows"]] == ["addmm", "2 more", "other"]
    assert (call["coverage"], plain["limits"]["copy_gb_s"]) == (0.8, 1.0)
