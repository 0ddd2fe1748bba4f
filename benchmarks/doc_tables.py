"""Write the tables of README and docs from the result files, or say which are stale.

usage: python benchmarks/doc_tables.py [--check]

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; everything between them is replaced. No figure in them
is written by hand. --check changes nothing and exits 1 where a table is not what its result file says.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotswap.benchmarks.kernels_kit import table as kernels
from hotswap.benchmarks.models_kit import table as models
from hotswap.benchmarks.models_kit.race import rivals_of
from hotswap.benchmarks.ratio import ratio

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/gpu.md")
_BLOCK = re.compile(r"(<!-- table: (?P<name>[^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
# README shows all whole models, and a kernel of each kind that is not level with everybody's.
_KERNELS = (
    "cross entropy 8192x32000",
    "linear cross entropy 8192x768x50257",
    "softmax 1024x32768",
    "layernorm 4096x5120",
    "rmsnorm 32768x2048",
    "rotary interleaved 2x32x4096x128",
    "one-row linear 1x8192x2048",
)


def rows_of(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["rows"]
    return found


def headline() -> str:
    """Return whole models and some kernels on a GPU against torch.compile, the largest gain first."""
    lines = ["| what | torch.compile | ours | over torch.compile |", "|---|---|---|---|"]
    found = []
    for (workload, shape), arms in models.workloads(rows_of("models-nvidia-h200")).items():
        best = min(rivals_of(arms), key=lambda r: float(r["ms"]), default=None)
        ours = next((r for r in arms if r["arm"] == "ours"), None)
        if best and ours and best["ours_faster"]:
            cells = f"| {workload.removesuffix('@full')} {shape} | {best['ms']:.2f} ms | {ours['ms']:.2f} ms"
            found.append((best, cells))
    found.sort(key=lambda f: -f[0]["ours_faster"]["median"])
    lines += [f"{cells} | {ratio(best)} |" for best, cells in found]
    mean = statistics.geometric_mean(best["ours_faster"]["median"] for best, _ in found)
    lines.append(f"| **{len(found)} workloads, geometric mean** | | | **{mean:.2f}x** |")
    for (task, shape, _), arms_by_name in kernels.by_row(rows_of("kernels-nvidia-h200")):
        rival, own = arms_by_name.get("torch.compile"), arms_by_name.get("ours")
        if f"{task} {shape}" in _KERNELS and rival and own and rival["us"] and own["us"]:
            cells = f"| {task} {shape} | {rival['us']:.1f} us | {own['us']:.1f} us"
            lines.append(f"{cells} | {ratio(rival)} |")
    return "\n".join(lines)


def cpu_kernels() -> str:
    """Return the CPU kernels that the template search found, against eager and Inductor's code."""
    titles = ("region", "dtype", "eager us", "Inductor us", "ours us", "over Inductor", "over eager")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    rows = rows_of("cpu-kernels")
    for task, dtype in dict.fromkeys((r["task"], r["dtype"]) for r in rows):
        arm = {r["arm"]: r for r in rows if (r["task"], r["dtype"]) == (task, dtype)}
        us = " | ".join(f"{arm[name]['us']:.0f}" if name in arm else "-" for name in ("eager", "inductor", "ours"))
        gains = " | ".join(ratio(arm[name]) for name in ("inductor", "eager"))
        lines.append(f"| {task} | {dtype} | {us} | {gains} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "headline": headline,
    "cpu kernels": cpu_kernels,
    "models": lambda: models.markdown(rows_of("models-nvidia-h200")),
    "kernels": lambda: kernels.markdown(rows_of("kernels-nvidia-h200")).rstrip("\n"),
}


def filled(text: str) -> str:
    """Return a page with every table made anew. Raises KeyError where it asks for a table that nobody makes."""
    return _BLOCK.sub(lambda found: f"{found[1]}{TABLES[found['name']]()}\n{found[3]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a table is stale")
    asked = parser.parse_args()
    stale = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        if filled(text) != text:
            stale.append(page)
            if not asked.check:
                (ROOT / page).write_text(filled(text), encoding="utf-8")
    print("\n".join(stale) or "every table is what its result file says")
    sys.exit(bool(stale) and asked.check)


if __name__ == "__main__":
    main()
