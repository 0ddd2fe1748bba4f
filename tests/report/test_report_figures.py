"""Numbers as the report writes them."""

from __future__ import annotations

import pytest

from hotswap.integrator.report import figures
from hotswap.optimizer.verdict import Interval


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"),
        (0.4116, "0.412"),
        (9.996, "10.0"),
        (99.96, "100"),
        (31.05, "31.1"),
        (8820.0, "8,820"),
        (1.2e6, "1,200,000"),
    ],
)
def test_three_digits_and_no_exponent(value: float, said: str) -> None:
    assert figures.significant(value) == said


def test_what_was_not_measured_is_a_dash_and_never_a_zero() -> None:
    absent = [figures.time_us(None), figures.duration(None), figures.percent(None), figures.ratio(None)]
    absent += [figures.with_bounds(None), figures.scientific(None)]
    assert set(absent) == {"\N{EN DASH}"}


def test_a_tiny_share_is_not_rounded_to_nothing() -> None:
    assert figures.percent(0.0004) == "<0.1%"
    assert figures.percent(0.0) == "0.0%"


@pytest.mark.parametrize(("us", "said"), [(560.0, "560 µs"), (31_050.0, "31.1 ms"), (2.5e6, "2.50 s")])
def test_a_time_takes_the_unit_that_keeps_it_short(us: float, said: str) -> None:
    assert figures.duration(us) == said


@pytest.mark.parametrize(("seconds", "said"), [(3.14, "3.1 s"), (104.0, "1 min 44 s"), (7500.0, "2 h 05 min")])
def test_waiting_is_told_as_people_tell_it(seconds: float, said: str) -> None:
    assert figures.clock(seconds) == said


def test_gains_near_one_keep_a_third_decimal_where_asked() -> None:
    near = Interval(1.0042, 1.0011, 1.0073)
    assert figures.with_bounds(near) == "1.00x [1.00, 1.01]"
    assert figures.with_bounds(near, fine=True) == "1.004x [1.001, 1.007]"


def test_control_and_direction_characters_do_not_reach_the_reader() -> None:
    assert figures.one_line("a\x1b[31mred\u202e\n\tb") == "a [31mred b"
