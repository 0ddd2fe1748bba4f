"""Draw where the step's time went: before and after as stacked bars, and between them what each op gave or took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..results import Bar
from . import svg
from .figures import MISSING, duration, one_line, plain, unit_of
from .markup import Markup

WIDTH = 920
LEFT, RIGHT = 190, 650
COLUMNS = (740, 820, 916)
TOP, ROW = 118, 26
HUES = 8
OTHER = "other"


@dataclass(frozen=True)
class Step:
    """One op in both steps; None on the side where it does not occur. hue: class of its colour."""

    label: str
    before_us: float | None
    after_us: float | None
    hue: str

    @property
    def change_us(self) -> float:
        return (self.after_us or 0.0) - (self.before_us or 0.0)


@dataclass(frozen=True)
class Frame:
    """The figure's scale of time and its one unit, so that a column of figures can be read down."""

    x: svg.Scale
    unit: str
    size_us: float

    def fixed(self, us: float | None) -> str:
        return MISSING if us is None else f"{us / self.size_us:,.{1 if self.size_us == 1.0 else 2}f}"

    def signed(self, us: float) -> str:
        text = self.fixed(abs(us))
        if float(text.replace(",", "")) == 0.0:
            return text
        return f"+{text}" if us > 0 else f"\N{MINUS SIGN}{text}"


def steps(before: Sequence[Bar], after: Sequence[Bar]) -> tuple[Step, ...]:
    """Return the ops of both steps joined by label, dearest first; what is beyond the palette becomes "other"."""
    first, second = _sums(before), _sums(after)
    labels = sorted({**first, **second}, key=lambda k: -max(first.get(k, 0.0), second.get(k, 0.0)))
    named = [label for label in labels if label.lower() != OTHER]
    shown, rest = named[:HUES], [*named[HUES:], *(label for label in labels if label.lower() == OTHER)]
    made = [Step(label, first.get(label), second.get(label), f"hue{n}") for n, label in enumerate(shown)]
    if rest:
        made.append(Step(OTHER, _total(first, rest), _total(second, rest), "hue-other"))
    return tuple(made)


def waterfall(before: Sequence[Bar], after: Sequence[Bar]) -> Markup:
    """Return the figure; both bars and all changes share one scale of time that starts at zero.

    Without an `after` (nothing was swapped, or the run was stopped) each op's bar is its part of the step.
    """
    parts = steps(before, after)
    old, new = sum(bar.us for bar in before), sum(bar.us for bar in after)
    frame = Frame(svg.Scale(0.0, max(old, new) * 1.02, LEFT, RIGHT), *unit_of(max(old, new)))
    bottom = TOP + ROW * (len(parts) + 1) + 6
    body = [*_axis(frame, bottom), *_heads(frame)]
    body += _stack("before", [(p, p.before_us) for p in parts], old, frame, 34)
    if after:
        body += _stack("after", [(p, p.after_us) for p in parts], new, frame, 64)
    level = old if after else 0.0
    body.append(_joint(frame, level, 58, TOP + 2))
    for number, part in enumerate(parts):
        y = TOP + ROW * number
        end = level + (part.change_us if after else part.before_us or 0.0)
        body += _part(part, (level, end), frame, y, compared=bool(after))
        level = end
        body.append(_joint(frame, level, y + 18, y + ROW + 2))
    body += _sum_line(old, new if after else None, frame, TOP + ROW * len(parts))
    title = f"The step before, {duration(old)}, and after, {duration(new if after else None)}"
    words = "; ".join(f"{p.label} {duration(p.before_us)} to {duration(p.after_us)}" for p in parts)
    return svg.figure("waterfall-figure", title, words, WIDTH, bottom + 26, *body)


def _sums(bars: Sequence[Bar]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for bar in bars:
        sums[one_line(bar.label)] = sums.get(one_line(bar.label), 0.0) + bar.us
    return sums


def _total(sums: dict[str, float], labels: Sequence[str]) -> float | None:
    there = [sums[label] for label in labels if label in sums]
    return sum(there) if there else None


def _axis(frame: Frame, bottom: float) -> list[Markup]:
    body = []
    for tick in frame.x.ticks(5):
        at, text = frame.x(tick), f"{plain(tick / frame.size_us)} {frame.unit}"
        body.append(svg.line(at, 28, at, bottom, "grid"))
        body.append(svg.label(at, bottom + 18, text, "tick", anchor="middle"))
    return body


def _heads(frame: Frame) -> list[Markup]:
    heads = zip(COLUMNS, (f"before, {frame.unit}", "after", "change"), strict=True)
    return [svg.label(x, TOP - 14, head, "tick", anchor="end") for x, head in heads]


def _joint(frame: Frame, us: float, top: float, bottom: float) -> Markup:
    return svg.line(frame.x(us), top, frame.x(us), bottom, "join")


def _stack(name: str, parts: Sequence[tuple[Step, float | None]], total: float, frame: Frame, y: float) -> list[Markup]:
    body = [svg.label(0, y + 16, name, "strong")]
    x = 0.0
    for part, us in parts:
        if us:
            share = f"{part.label}: {duration(us)}, {us / total:.1%} of the step"
            body.append(svg.rect(frame.x(x), y, frame.x(x + us) - frame.x(x), 22, f"segment {part.hue}", share))
            x += us
    body.append(svg.label(frame.x(total) + 8, y + 16, duration(total), "strong"))
    return body


def _part(part: Step, ends: tuple[float, float], frame: Frame, y: float, *, compared: bool) -> list[Markup]:
    left, right = sorted(frame.x(us) for us in ends)
    hover = f"{part.label}: {duration(part.before_us)} before, {duration(part.after_us)} after"
    grew = " grew" if compared and part.change_us > 0 else ""
    change = frame.signed(part.change_us) if compared else MISSING
    figures = zip(COLUMNS, (frame.fixed(part.before_us), frame.fixed(part.after_us), change), strict=True)
    return [
        svg.rect(0, y + 4, 12, 12, f"segment {part.hue}"),
        svg.label(20, y + 14, svg.fitted(part.label, LEFT - 34)),
        svg.rect(left, y + 2, max(right - left, 1.5), 16, f"segment {part.hue}{grew}", hover),
        *(svg.label(x, y + 14, text, anchor="end") for x, text in figures),
    ]


def _sum_line(before: float, after: float | None, frame: Frame, y: float) -> list[Markup]:
    change = MISSING if after is None else frame.signed(after - before)
    figures = zip(COLUMNS, (frame.fixed(before), frame.fixed(after), change), strict=True)
    length = frame.x(before if after is None else after) - frame.x(0.0)
    return [
        svg.label(0, y + 17, "the step" if after is None else "the step after", "strong"),
        svg.rect(frame.x(0.0), y + 4, length, 18, "whole"),
        *(svg.label(x, y + 17, text, "strong", anchor="end") for x, text in figures),
    ]
