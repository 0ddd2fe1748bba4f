"""What becomes of the result rows: CSV, a markdown table, a plot."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from typing import Any

from hotswap.benchmarks.ratio import ratio
from hotswap.integrator.report import svg
from hotswap.integrator.report.markup import element

Result = dict[str, Any]
_COLUMNS = (
    "task",
    "shape",
    "dtype",
    "arm",
    "us",
    "low_us",
    "high_us",
    "share_of_limit",
    "ours_faster",
    "low",
    "high",
    "note",
)
_MARKS = {
    "eager": "#8a8f98",
    "fused torch op": "#b07d2b",
    "torch.compile": "#3b6fb6",
    "max-autotune-no-cudagraphs": "#7aa6d8",
    "liger": "#4f9d69",
    "starter": "#b05c8c",
    "ours": "#c0392b",
}  # fmt: skip
# Behind a figure of an arm that does something else than its row asks for.
_MARK = "†"


def by_row(results: list[Result]) -> Iterator[tuple[tuple[str, str, str], dict[str, Result]]]:
    """Yield (task, shape, dtype) and its arms by name, in the order of the file."""
    keys = dict.fromkeys((r["task"], r["shape"], r["dtype"]) for r in results)
    for key in keys:
        yield key, {r["arm"]: r for r in results if (r["task"], r["shape"], r["dtype"]) == key}


def as_csv(results: list[Result]) -> str:
    """Return the results as CSV, one line an arm."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(_COLUMNS)
    for r in results:
        low, high = r["interval"] or (None, None)
        faster = r["ours_faster"] or {}
        writer.writerow(
            [r["task"], r["shape"], r["dtype"], r["arm"], r["us"], low, high, r["share_of_limit"],
             faster.get("median"), faster.get("low"), faster.get("high"), r["note"]]
        )  # fmt: skip
    return out.getvalue()


def best_rival(arms: dict[str, Result]) -> Result | None:
    """Return the fastest arm that is not ours and does what the row asks, None where no such rival was timed."""
    timed = [r for name, r in arms.items() if name != "ours" and r["us"] is not None and _counts(r)]
    return min(timed, key=lambda r: float(r["us"]), default=None)


def geometric_mean(results: list[Result], arm: str) -> float | None:
    """Return the geometric mean of (time of `arm` / ours) over the rows that have both, None where none has.

    A row in which `arm` does not do what is asked is left out.
    """
    ratios = [
        arms[arm]["us"] / arms["ours"]["us"]
        for _, arms in by_row(results)
        if arm in arms and arms[arm]["us"] and _counts(arms[arm]) and arms.get("ours", {}).get("us")
    ]
    return math.exp(sum(math.log(r) for r in ratios) / len(ratios)) if ratios else None


def markdown(results: list[Result]) -> str:
    """Return the table for a README: ours against eager, torch.compile and the best rival of each row."""
    lines = [
        "| task | dtype | ours, µs | of the limit | eager | torch.compile | best rival | ours is faster by | made by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (task, shape, dtype), arms in by_row(results):
        ours, best = arms.get("ours", {}), best_rival(arms)
        share = f"{ours['share_of_limit']:.0%}" if ours.get("us") else "-"
        name = f"{_us(best)} {best['arm']}" if best else "-"
        lines.append(
            f"| {task} {shape} | {dtype} | {_us(ours)} | {share} | {_us(arms.get('eager'))} "
            f"| {_us(arms.get('torch.compile'))} | {name} | {ratio(best)} | {_made_by(ours)} |"
        )
    if not all(_counts(r) for r in results):
        breaches = dict.fromkeys(f"{r['arm']}, {r['task']}: {r['note']}" for r in results if not _counts(r))
        lines.append(f"\n{_MARK} not what the row asks for, and no rival there ({'; '.join(breaches)}).")
    for arm in ("eager", "torch.compile"):
        mean = geometric_mean(results, arm)
        if mean is not None:
            lines.append(f"\nGeometric mean over {arm}: {mean:.2f}x.")
    return "\n".join(lines) + "\n"


def _counts(result: Result) -> bool:
    """Whether an arm does what its row asks; files of before this was looked at do not say, and all of theirs count."""
    return bool(result.get("counts", True))


def _us(result: Result | None) -> str:
    us = result.get("us") if result else None
    if result is None or us is None:
        return "-"
    mark = "" if _counts(result) else f" {_MARK}"
    return (f"{us:.1f}" if us < 100 else f"{us:.0f}") + mark


def _made_by(ours: Result) -> str:
    return ", ".join(part for part in (ours.get("proposer"), ours.get("label")) if part) or "-"


def plot(results: list[Result], title: str) -> str:
    """Return a standalone SVG: one line a row, a dot an arm, at its share of the measured limit."""
    rows = list(by_row(results))
    width, left, top, step = 900, 330, 70, 19
    height = top + step * len(rows) + 40
    scale = svg.Scale(0.0, 1.05, left, width - 20.0)
    body = [svg.label(10, 22, title, "title")]
    for number, (name, colour) in enumerate(_MARKS.items()):
        x = 10 + 125 * (number % 7)
        body += [element("circle", cx=x + 5, cy=44, r=4.5, fill=colour), svg.label(x + 14, 48, svg.fitted(name, 105))]
    for tick in scale.ticks(6):
        body += [svg.line(scale(tick), top - 6, scale(tick), height - 30, "grid")]
        body += [svg.label(scale(tick), height - 14, f"{tick:.0%}", anchor="middle")]
    for number, ((task, shape, dtype), arms) in enumerate(rows):
        y = top + step * number + 6
        body.append(svg.label(left - 8, y + 4, f"{task} {shape} {dtype}", anchor="end"))
        for name, result in arms.items():
            if result["us"] is not None:
                hover = f"{name}: {result['us']:.1f} µs, {result['share_of_limit']:.0%} of the limit"
                x = min(scale(result["share_of_limit"]), width - 8.0)
                ours = name == "ours"
                hover += "" if _counts(result) else f"; {result['note']}"
                dot = element("title", hover)
                body.append(
                    element(
                        "circle", dot, cx=x, cy=y, r=5.0 if ours else 3.5, fill=_MARKS.get(name, "#444"), opacity=0.9
                    )
                )
    style = element("style", "text{font:12px system-ui,sans-serif;fill:#222}.title{font-weight:600}.grid{stroke:#ddd}")
    background = element("rect", width=width, height=height, fill="white")
    box = f"0 0 {width} {height}"
    space = "http://www.w3.org/2000/svg"
    return str(
        element("svg", style, background, *body, xmlns=space, viewBox=box, width=width, height=height, role="img")
    )
