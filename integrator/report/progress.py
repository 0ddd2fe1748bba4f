"""Draw a task's search: every attempt in its order, the best so far, and what it had to beat."""

from __future__ import annotations

from collections.abc import Sequence

from ..results import SearchPoint, TaskStory
from . import svg
from .figures import clock, duration, one_line, plain, significant
from .markup import Markup

WIDTH, HEIGHT = 450, 222
LEFT, RIGHT, TOP, BOTTOM = 54, 352, 26, 176
STRIP = 10.0  # the height at which attempts without a time are drawn


def progress(number: int, story: TaskStory) -> Markup | None:
    """Return the figure, None where nothing was tried."""
    if not story.points:
        return None
    points = sorted(story.points, key=lambda p: p.attempt)
    x, y = _scales(points, story)
    attempts = (_attempt(point, x, y) for point in points)
    body = [*_grid(x, y), *_rivals(story, y), *_best(points, x, y), *attempts]
    accepted = sum(p.accepted for p in points)
    task = one_line(story.task)
    best = min((p.best_us for p in points if p.best_us is not None), default=None)
    said = f"{len(points)} attempts, {accepted} accepted; best {duration(best)}, eager {duration(story.eager_us)}"
    return svg.figure(f"progress{number}", f"Search on {task}", said, WIDTH, HEIGHT, *body)


def _scales(points: Sequence[SearchPoint], story: TaskStory) -> tuple[svg.Scale, svg.Scale]:
    times = [t for t in (story.eager_us, story.inductor_us, story.floor_us) if t]
    times += [t for p in points for t in (p.us, p.best_us) if t]
    return (
        svg.Scale(points[0].attempt - 0.6, points[-1].attempt + 0.6, LEFT, RIGHT),
        _heights(min(times, default=1.0), max(times, default=1.0)),
    )


def _heights(low: float, high: float) -> svg.Scale:
    """Return a scale that shows ratios as distances; within a factor of two a linear one has the rounder ticks."""
    if high / low > 2.0:
        return svg.Scale(low / 1.15, high * 1.15, BOTTOM, TOP + 14, log=True)
    margin = max(0.15 * (high - low), 0.01 * high)
    return svg.Scale(low - margin, high + margin, BOTTOM, TOP + 14)


def _grid(x: svg.Scale, y: svg.Scale) -> list[Markup]:
    whole = [tick for tick in x.ticks(6) if tick == round(tick)]
    body = [svg.label(x(tick), BOTTOM + 18, plain(tick), "tick", anchor="middle") for tick in whole]
    for tick in y.ticks(3):
        body.append(svg.line(LEFT, y(tick), RIGHT, y(tick), "grid"))
        body.append(svg.label(LEFT - 8, y(tick) + 4, plain(tick), "tick", anchor="end"))
    body.append(svg.line(LEFT, BOTTOM, RIGHT, BOTTOM, "axis"))
    body.append(svg.label((LEFT + RIGHT) / 2, BOTTOM + 38, "attempt", "tick", anchor="middle"))
    body.append(svg.label(LEFT - 8, STRIP + 8, "µs a call", "tick", anchor="end"))
    return body


def _rivals(story: TaskStory, y: svg.Scale) -> list[Markup]:
    """Return the three rules with their names at the right, pushed apart where they would touch."""
    known = (("eager", story.eager_us), ("Inductor", story.inductor_us), ("floor", story.floor_us))
    rules = sorted(((y(us), name, us) for name, us in known if us), reverse=True)
    body, lowest = [], BOTTOM + 20.0
    for height, name, us in rules:
        lowest = min(height + 4, lowest - 13)
        body.append(svg.line(LEFT, height, RIGHT, height, f"rival {name.lower()}"))
        body.append(svg.label(RIGHT + 6, lowest, f"{name} {significant(us)}", "tick"))
    return body


def _best(points: Sequence[SearchPoint], x: svg.Scale, y: svg.Scale) -> list[Markup]:
    corners: list[tuple[float, float]] = []
    for point in points:
        if point.best_us is not None:
            if corners:
                corners.append((x(point.attempt), corners[-1][1]))
            corners.append((x(point.attempt), y(point.best_us)))
    return [svg.path([*corners, (RIGHT, corners[-1][1])], "best")] if corners else []


def _attempt(point: SearchPoint, x: svg.Scale, y: svg.Scale) -> Markup:
    at = x(point.attempt)
    who = f"attempt {point.attempt}, {one_line(point.proposer)}, took {clock(point.seconds)}"
    if point.accepted:
        words = f"{who}: accepted" + (f", {duration(point.us)}" if point.us is not None else "")
        height = STRIP + 12 if point.us is None else y(point.us)
        return svg.dot(at, height, "dot measured", words, radius=3.5)
    words = f"{who}: rejected, {one_line(point.reason)}"
    return svg.cross(at, STRIP + 12 if point.us is None else y(point.us), "rejected", words)
