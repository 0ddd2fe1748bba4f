"""The few shapes our figures are made of, and scales that choose their own ticks. Colours are classes of page.css."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .markup import Attribute, Markup, element


@dataclass(frozen=True)
class Scale:
    """Map values in [low, high] to pixels in [start, end]; logarithmic where figures differ by more than taste."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Return round values inside the scale, near `about` of them."""
        return _log_ticks(self.low, self.high, about) if self.log else _linear_ticks(self.low, self.high, about)


def _linear_ticks(low: float, high: float, about: int) -> list[float]:
    raw = (high - low) / about
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * magnitude >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, about: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        ticks = [m * 10.0**p for p in powers for m in mantissas if low * 0.999 <= m * 10.0**p <= high * 1.001]
        if len(ticks) >= min(about, 3):
            return ticks
    return _linear_ticks(low, high, about)  # within a factor of three the two scales hardly differ


def figure(name: str, title: str, description: str, width: int, height: float, *body: str) -> Markup:
    """Return a figure that scales to its column; `title` and `description` are what a screen reader says."""
    shown = element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", description, id=f"{name}-desc"),
        *body,
        viewBox=f"0 0 {width} {height:.0f}",
        width=width,
        height=f"{height:.0f}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )
    return element("div", shown, class_="figure")


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def rect(x: float, y: float, width: float, height: float, class_: str, hover: str | None = None) -> Markup:
    return element("rect", *_hover(hover), x=x, y=y, width=max(width, 0.0), height=height, class_=class_)


def dot(x: float, y: float, class_: str, hover: str | None = None, radius: float = 4.5) -> Markup:
    return element("circle", *_hover(hover), cx=x, cy=y, r=radius, class_=class_)


def cross(x: float, y: float, class_: str, hover: str | None = None, arm: float = 3.5) -> Markup:
    """Return an x with an invisible disc around it, so that a pointer finds it."""
    left, right, top, bottom = (f"{v:.1f}" for v in (x - arm, x + arm, y - arm, y + arm))
    path = f"M{left} {top}L{right} {bottom}M{left} {bottom}L{right} {top}"
    target = element("circle", cx=x, cy=y, r=arm * 2, class_="target")
    return element("g", *_hover(hover), target, element("path", d=path, class_=class_))


def diamond(x: float, y: float, class_: str, hover: str | None = None, arm: float = 5.5) -> Markup:
    path = f"M{x - arm:.1f} {y:.1f}L{x:.1f} {y - arm:.1f}L{x + arm:.1f} {y:.1f}L{x:.1f} {y + arm:.1f}Z"
    return element("path", *_hover(hover), d=path, class_=class_)


def path(points: list[tuple[float, float]], class_: str) -> Markup:
    return element("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), class_=class_)


def label(x: float, y: float, text: str, class_: str = "", *, anchor: str = "start", **more: Attribute) -> Markup:
    return element("text", text, x=x, y=y, text_anchor=anchor, class_=class_ or None, **more)


def fitted(text: str, pixels: float, *, each: float = 6.6) -> str:
    """Return `text` cut in the middle where it would be wider than `pixels`; `each` is a mean glyph at 12 px."""
    room = max(3, int(pixels / each))
    if len(text) <= room:
        return text
    head = (room - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (room - 1 - head) :]}"


def _hover(text: str | None) -> tuple[Markup, ...]:
    return () if text is None else (element("title", text),)
