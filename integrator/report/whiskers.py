"""Draw speed-ups as dots with their intervals against 1: the headline, Amdahl's predictions and the ablation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...optimizer.verdict import Interval
from . import svg
from .figures import TIMES, ratio, with_bounds
from .markup import Markup

WIDTH = 920
LEFT, RIGHT = 240, 680
ROW = 34


@dataclass(frozen=True)
class Mark:
    """One value of a line. kind: "measured" (dot), "alone" (hollow dot) or "predicted" (diamond, no interval)."""

    kind: str
    interval: Interval
    said: str

    @classmethod
    def predicted(cls, value: float) -> Mark:
        return cls("predicted", Interval(value, value, value), "predicted")


@dataclass(frozen=True)
class Line:
    """One line of the figure: what it is about, its marks, and the figures in words at the right."""

    name: str
    marks: tuple[Mark, ...]
    words: str
    strong: bool = False


def whiskers(name: str, title: str, description: str, lines: Sequence[Line], *, fine: bool = False) -> Markup:
    """Return the figure; the vertical rule at 1 is where nothing is gained."""
    bottom = 20 + ROW * len(lines)
    scale = _scale(lines)
    body = [*_axis(scale, bottom, fine=fine)]
    for number, line in enumerate(lines):
        y = 20 + ROW * (number + 0.5)
        kind = "strong" if line.strong else ""
        body.append(svg.label(0, y + 4, svg.fitted(line.name, LEFT - 16), kind))
        body.append(svg.label(RIGHT + 20, y + 4, svg.fitted(line.words, WIDTH - RIGHT - 20), f"figures {kind}".strip()))
        body += _marks(line.marks, scale, y, fine=fine)
    return svg.figure(name, title, description, WIDTH, bottom + 26, *body)


def _scale(lines: Sequence[Line]) -> svg.Scale:
    ends = [1.0, *(e for line in lines for m in line.marks for e in (m.interval.low, m.interval.high))]
    low, high = min(ends), max(ends)
    margin = max(0.06 * (high - low), 0.004)
    return svg.Scale(low - margin, high + margin, LEFT, RIGHT)


def _axis(scale: svg.Scale, bottom: float, *, fine: bool) -> list[Markup]:
    body = []
    for tick in scale.ticks(6):
        at_one = abs(tick - 1.0) < 1e-9
        if not at_one:
            body.append(svg.line(scale(tick), 14, scale(tick), bottom, "grid"))
        narrow = fine and scale.high - scale.low < 0.06
        body.append(svg.label(scale(tick), bottom + 18, ratio(tick, fine=narrow, times=TIMES), "tick", anchor="middle"))
    body.append(svg.line(scale(1.0), 8, scale(1.0), bottom, "unity"))
    return body


def _marks(marks: Sequence[Mark], scale: svg.Scale, y: float, *, fine: bool) -> list[Markup]:
    body = []
    for number, mark in enumerate(marks):
        # Two marks of one line often agree: side by side in height, neither hides the other.
        at = y if len(marks) == 1 else y - 5 if number == 0 else y + 6
        x = scale(mark.interval.median)
        hover = f"{mark.said}: {with_bounds(mark.interval, fine=fine, times=TIMES)}"
        if mark.kind == "predicted":
            body.append(
                svg.diamond(x, at, "predicted", f"predicted: {ratio(mark.interval.median, fine=fine, times=TIMES)}")
            )
            continue
        low, high = scale(mark.interval.low), scale(mark.interval.high)
        body.append(svg.line(low, at, high, at, f"whisker {mark.kind}"))
        body += [svg.line(end, at - 4, end, at + 4, f"whisker {mark.kind}") for end in (low, high)]
        body.append(svg.dot(x, at, f"dot {mark.kind}", hover))
    return body
