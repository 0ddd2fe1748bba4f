"""Draw tasks under this machine's measured ceilings: how fast the work could run, ran, and runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..results import Report
from . import svg
from .figures import one_line, plain, significant
from .markup import Markup

WIDTH, HEIGHT = 920, 440
Box = tuple[float, float, float, float]
LEFT, RIGHT, TOP, BOTTOM = 70, 780, 20, 392


@dataclass(frozen=True)
class Point:
    """One task. before, after: GFLOP/s of the eager ops and of what stands there now; None where it was not changed."""

    number: int
    task: str
    intensity: float
    before: float
    after: float | None


def points(report: Report) -> tuple[Point, ...]:
    """Return the tasks whose FLOPs and bytes are known.

    A story's rate is that of the eager ops; what stands there now did the same work in after_us, not before_us.
    """
    numbers = {row.task: (number, row) for number, row in enumerate(report.rows, 1)}
    made = []
    for story in report.stories:
        if story.task not in numbers or not story.arithmetic_intensity or not story.attained_gflop_s:
            continue
        number, row = numbers[story.task]
        before, after = story.attained_gflop_s, None
        if row.outcome in ("kernel", "inductor") and row.after_us:
            after = before * row.before_us / row.after_us
        made.append(Point(number, one_line(story.task), story.arithmetic_intensity, before, after))
    return tuple(made)


def roofline(report: Report) -> Markup | None:
    """Return the figure, None where no task's FLOPs are known or the ceilings were not measured."""
    shown = points(report)
    peaks = {one_line(kind): rate * 1e3 for kind, rate in report.matmul_tflop_s.items() if rate > 0}
    if not shown or not peaks or report.copy_gb_s <= 0:
        return None
    x, y = _scales(shown, peaks, report.copy_gb_s)
    body = [*_grid(x, y), *_ceilings(peaks, report.copy_gb_s, x, y)]
    body += _tasks(shown, x, y)
    said = "; ".join(f"{p.task}: {_rates(p)} at {significant(p.intensity)} FLOP a byte" for p in shown)
    return svg.figure("roofline", "Roofline of this machine with the run's tasks", said, WIDTH, HEIGHT, *body)


def _scales(shown: Sequence[Point], peaks: dict[str, float], copy_gb_s: float) -> tuple[svg.Scale, svg.Scale]:
    ridge = max(peaks.values()) / copy_gb_s
    low = min(0.5, *(p.intensity for p in shown)) / 1.6
    high = max(ridge * 4, *(p.intensity * 2 for p in shown))
    rates = [r for p in shown for r in (p.before, p.after) if r]
    floor, top = min([*rates, low * copy_gb_s]) / 1.8, max([*rates, *peaks.values()]) * 1.8
    return svg.Scale(low, high, LEFT, RIGHT, log=True), svg.Scale(floor, top, BOTTOM, TOP, log=True)


def _grid(x: svg.Scale, y: svg.Scale) -> list[Markup]:
    body = []
    for tick in x.ticks(4):
        body.append(svg.line(x(tick), TOP, x(tick), BOTTOM, "grid"))
        body.append(svg.label(x(tick), BOTTOM + 18, plain(tick), "tick", anchor="middle"))
    for tick in y.ticks(4):
        body.append(svg.line(LEFT, y(tick), RIGHT, y(tick), "grid"))
        body.append(svg.label(LEFT - 8, y(tick) + 4, plain(tick), "tick", anchor="end"))
    middle = (TOP + BOTTOM) / 2
    body.append(svg.label((LEFT + RIGHT) / 2, HEIGHT - 8, "arithmetic intensity, FLOP a byte", "tick", anchor="middle"))
    turned = f"rotate(-90 16 {middle:.0f})"
    body.append(svg.label(16, middle, "GFLOP/s", "tick", anchor="middle", transform=turned))
    return body


def _ceilings(peaks: dict[str, float], copy_gb_s: float, x: svg.Scale, y: svg.Scale) -> list[Markup]:
    top = max(peaks.values())
    start = max(x.low, y.low / copy_gb_s)
    slope = [(x(start), y(start * copy_gb_s)), (x(top / copy_gb_s), y(top))]
    body = [svg.path(slope, "ceiling")]
    at = start * (top / copy_gb_s / start) ** 0.62
    angle = math.degrees(math.atan2(slope[1][1] - slope[0][1], slope[1][0] - slope[0][0]))
    px, py = x(at), y(at * copy_gb_s)
    turned = f"rotate({angle:.1f} {px:.1f} {py:.1f})"
    words = f"copy {significant(copy_gb_s)} GB/s"
    body.append(svg.label(px, py - 7, words, "tick", anchor="middle", transform=turned))
    for kind, peak in peaks.items():
        body.append(svg.line(x(peak / copy_gb_s), y(peak), RIGHT, y(peak), "ceiling"))
        body.append(svg.label(RIGHT + 8, y(peak) + 4, f"{kind} {significant(peak / 1e3, 2)} TFLOP/s", "tick"))
    return body


def _tasks(shown: Sequence[Point], x: svg.Scale, y: svg.Scale) -> list[Markup]:
    """Return the dots, each with its task's name, or its number alone where the name would touch something."""
    body = [mark for point in shown for mark in _dots(point, x, y)]
    taken = [(x(p.intensity) - 5, y(rate) - 5, 10.0, 10.0) for p in shown for rate in (p.before, p.after) if rate]
    for point in shown:
        at, height = x(point.intensity) + 9, y(point.after or point.before) + 4
        number, name = str(point.number), svg.fitted(f"{point.number} {point.task}", 170)
        for text, left, base in ((name, at, height), (number, at, height), (number, at - 12, height - 12)):
            box = (left, base - 9, 6.2 * len(text), 11.0)
            if left + box[2] < RIGHT and not any(_touch(box, other) for other in taken):
                break
        taken.append(box)
        body.append(svg.label(left, base, text, "key"))
    return body


def _touch(one: Box, other: Box) -> bool:
    """Whether two boxes (left, top, width, height) overlap."""
    apart = one[0] > other[0] + other[2] or other[0] > one[0] + one[2]
    return not (apart or one[1] > other[1] + other[3] or other[1] > one[1] + one[3])


def _dots(point: Point, x: svg.Scale, y: svg.Scale) -> list[Markup]:
    at = x(point.intensity)
    hover = f"{point.number} {point.task}: {_rates(point)} at {significant(point.intensity)} FLOP a byte"
    marks = [svg.dot(at, y(point.before), "dot eager", hover)]
    if point.after is not None:
        marks.insert(0, svg.line(at, y(point.before), at, y(point.after), "link"))
        marks.append(svg.dot(at, y(point.after), "dot measured", hover))
    return marks


def _rates(point: Point) -> str:
    if point.after is None:
        return f"{significant(point.before)} GFLOP/s, unchanged"
    return f"{significant(point.before)} to {significant(point.after)} GFLOP/s"
