"""Numbers as a reader sees them: three digits, one unit a column, and an en dash where nothing was measured."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from ...optimizer.verdict import Interval

MISSING = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]+")


def one_line(text: str) -> str:
    """Return `text` with line breaks, control and direction characters as single blanks: it may come from a model."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def significant(value: float | None, digits: int = 3) -> str:
    """Return `value` to that many digits, no exponent, thousands separated; whole numbers keep all their digits."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, decimals)
    if rounded and decimals and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        decimals -= 1
    return f"{value:,.{min(decimals, 9)}f}"


def scientific(value: float | None) -> str:
    """Return an error or a divergence: two digits and an exponent, a bare 0 for exact."""
    if value is None:
        return MISSING
    return "0" if value == 0 else f"{value:.1e}"


def time_us(us: float | None) -> str:
    """Return a bare number of microseconds; the unit stands in the column's head."""
    return significant(us)


def duration(us: float | None) -> str:
    """Return a time with the unit that keeps it short."""
    if us is None:
        return MISSING
    unit, size = unit_of(us)
    return f"{significant(us / size)} {unit}"


def plain(value: float) -> str:
    """Return a tick's value with no more digits than it has."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def unit_of(us: float) -> tuple[str, float]:
    """Return the unit that suits a figure whose greatest time is `us`, and how many microseconds it holds."""
    return ("µs", 1.0) if us < 1e3 else ("ms", 1e3) if us < 1e6 else ("s", 1e6)


def clock(seconds: float) -> str:
    """Return a length of time a person waited: `48 s`, `1 min 12 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def percent(share: float | None) -> str:
    """Return a share as a percentage; below a tenth of a percent it is said so and not rounded to nothing."""
    if share is None:
        return MISSING
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{share * 100:.1f}%"


def ratio(value: float | None, *, fine: bool = False, times: str = "x") -> str:
    """Return a speed-up; `fine` keeps a third decimal, for whole-model gains near 1."""
    if value is None:
        return MISSING
    return _decimal(value, fine=fine) + times


def bounds(interval: Interval | None, *, fine: bool = False) -> str:
    """Return `[low, high]`, or nothing where there is no interval."""
    if interval is None:
        return ""
    return f"[{_decimal(interval.low, fine=fine)}, {_decimal(interval.high, fine=fine)}]"


def with_bounds(interval: Interval | None, *, fine: bool = False, times: str = "x") -> str:
    """Return the median and its interval: `1.42x [1.40, 1.45]`."""
    if interval is None:
        return MISSING
    return f"{ratio(interval.median, fine=fine, times=times)} {bounds(interval, fine=fine)}"


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Return `1 site`, `6 sites`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def listed(words: Iterable[str]) -> str:
    """Return `a, b and c`."""
    items = list(words)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def _decimal(value: float, *, fine: bool) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.{3 if fine else 2}f}"
