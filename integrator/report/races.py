"""The whole model's races in words: who ran against whom, over which calls, and what may be claimed of it."""

from __future__ import annotations

from collections.abc import Iterator

from ...optimizer.verdict import Interval
from ..results import EndToEnd, Report
from .figures import MISSING, bounds, clock, duration, one_line, ratio, with_bounds

HOTSWAP = "hotswap"
NAMES = {"eager": "eager", "compile": "torch.compile"}
HEADS = ("call", "arm", "median", "speed-up over it", "first call")


def name_of(arm: str) -> str:
    """Return an arm's name as its users know it."""
    return NAMES.get(arm, one_line(arm))


def subject(race: EndToEnd) -> str:
    """Return the arm that the race's ratios speak of: hotswap, or the last arm of a run that kept nothing."""
    others = [arm.name for arm in race.arms if arm.name not in race.speedup]
    return HOTSWAP if HOTSWAP in others or not others else others[-1]


def raced(report: Report, rival: str) -> tuple[EndToEnd, ...]:
    """Return the races of the patched model against `rival`."""
    return tuple(e for e in report.end_to_end if rival in e.speedup and any(arm.name == HOTSWAP for arm in e.arms))


def rivals(report: Report) -> tuple[str, ...]:
    """Return the arms that the patched model ran against on any call, eager and torch.compile first."""
    found = {name for race in report.end_to_end for name in race.speedup if raced(report, name)}
    known = [name for name in NAMES if name in found]
    return (*known, *sorted(found - set(known)))


def overall(report: Report, rival: str) -> Interval | None:
    """Return the speed-up over the calls where `rival` ran, mixed as they are served; None where it never did.

    A served mix takes sum(weight x time); its ratio is the calls' ratios weighted by weight x hotswap's time. The
    bounds are averaged in the same way: exact for one call, too wide rather than too narrow for several.
    """
    races = raced(report, rival)
    shares = [race.weight * arm.median_us for race in races for arm in race.arms if arm.name == HOTSWAP]
    total = sum(shares)
    if not total:
        return None
    pairs = [(share / total, race.speedup[rival]) for share, race in zip(shares, races, strict=True)]
    return Interval(
        median=sum(share * i.median for share, i in pairs),
        low=sum(share * i.low for share, i in pairs),
        high=sum(share * i.high for share, i in pairs),
    )


def scope(report: Report, rival: str) -> str:
    """Return the calls that `overall` rests on, where they are not all of them; else nothing."""
    races = raced(report, rival)
    return "" if len(races) == len(report.end_to_end) else ", ".join(one_line(race.call) for race in races)


def comparison(report: Report, rival: str, *, times: str = "x") -> str | None:
    """Return `1.42x faster than eager [1.40, 1.45]`; a gain or a loss is claimed only where the interval excludes 1."""
    interval = overall(report, rival)
    if interval is None:
        return None
    where = scope(report, rival)
    name = f"{name_of(rival)} on {where}" if where else name_of(rival)
    if interval.low > 1.0:
        return f"{ratio(interval.median, times=times)} faster than {name} {bounds(interval)}"
    if interval.high < 1.0:
        return f"slower than {name}, {with_bounds(interval, times=times)}"
    return f"no different from {name} within noise, {with_bounds(interval, times=times)}"


def best_unpatched(report: Report) -> tuple[str, float] | None:
    """Return the rival that beats eager most, with its median gain over it; None where none does beyond noise."""
    gains: list[tuple[float, str]] = []
    for race in report.end_to_end:
        over_eager = race.speedup.get("eager")
        if over_eager is not None and subject(race) != HOTSWAP and over_eager.low > 1.0:
            gains.append((over_eager.median, subject(race)))
    return (name_of(max(gains)[1]), max(gains)[0]) if gains else None


def lines(report: Report, *, times: str = "x") -> Iterator[tuple[str, str, str, str, str]]:
    """Return every arm of every call as text, under HEADS; a call is named on its first line only."""
    for race in report.end_to_end:
        weight = f" (weight {race.weight:g})" if len(report.end_to_end) > 1 else ""
        about = subject(race)
        for number, arm in enumerate(race.arms):
            gain = with_bounds(race.speedup[arm.name], times=times) if arm.name in race.speedup else ""
            waited = race.compile_s.get(arm.name)
            if waited is None and arm.name == HOTSWAP:
                waited = race.compile_s.get(f"{HOTSWAP} ({report.tail})")
            yield (
                f"{one_line(race.call)}{weight}" if number == 0 else "",
                name_of(arm.name),
                duration(arm.median_us),
                f"{name_of(about)} {gain}" if gain and about != HOTSWAP else gain,
                MISSING if waited is None else clock(waited),
            )
