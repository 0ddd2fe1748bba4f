"""Show the result file: a markdown table for README, and one line a workload while it is measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from hotswap.benchmarks.ratio import ratio

from .race import rivals_of

Rows = Sequence[dict[str, Any]]


def workloads(rows: Rows) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the rows of each (workload, shape), in the file's order."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["workload"], row["shape"]), []).append(row)
    return found


def markdown(rows: Rows) -> str:
    titles = (
        "workload",
        "shape",
        "eager ms",
        "torch.compile ms",
        "ours ms",
        "over torch.compile",
        "over eager",
        "x floor",
    )
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    gains = []
    for (workload, shape), arms in workloads(rows).items():
        by_name = {r["arm"]: r for r in arms}
        ours, eager = by_name.get("ours"), by_name.get("eager")
        best = min(rivals_of(arms), key=lambda r: r["ms"], default=None)
        if best and best["ours_faster"]:
            gains.append(best["ours_faster"]["median"])
        cells = [
            workload,
            shape,
            _ms(eager),
            f"{best['ms']:.2f} ({best['arm']})" if best else "-",
            _ms(ours),
            ratio(best),
            ratio(eager),
            f"{ours['times_floor']:.2f}" if ours and ours.get("times_floor") else "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if gains:
        lines.append(
            f"\nGeometric mean over the better mode of torch.compile: {statistics.geometric_mean(gains):.2f}x."
        )
    return "\n".join(lines)


def line(rows: Rows) -> str:
    """Return one line about one workload."""
    told = [f"{r['arm']} {r['ms']:.2f} ms" if r["ms"] is not None else f"{r['arm']}: {r['note']}" for r in rows]
    best = min(rivals_of(rows), key=lambda r: r["ms"], default=None)
    beside = f"  over {best['arm']} {ratio(best)}" if best else ""
    return f"{rows[0]['workload']} {rows[0]['shape']}: {', '.join(told)}{beside}"


def _ms(row: dict[str, Any] | None) -> str:
    return f"{row['ms']:.2f}" if row and row["ms"] is not None else "-"
