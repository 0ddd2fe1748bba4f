"""Time our GPU kernels against eager code, fused torch ops, torch.compile, Liger and published starter kernels.

usage: python benchmarks/kernels.py [--only TEXT ...] [--quick] [--seconds 540] [--liger PATH] [--table FILE]

All arms of a row are timed in one run on the same inputs, in interleaved blocks of CUDA-graph replays over rotating
input sets that are twice the L2 cache together. Rows that the result file holds from the same environment are kept.
Writes benchmarks/results/kernels-<device>.json, .csv and .svg.
`--device cpu` runs the whole way on tiny shapes without a GPU: with the C++ back end, or with our Triton kernels in
Triton's interpreter where TRITON_INTERPRET=1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from hotswap.benchmarks.kernels_kit.ours import interpreted
from hotswap.benchmarks.kernels_kit.race import OURS, Effort, measured
from hotswap.benchmarks.kernels_kit.rivals import ALL
from hotswap.benchmarks.kernels_kit.rows import Row, rows
from hotswap.benchmarks.kernels_kit.table import as_csv, best_rival, markdown, plot
from hotswap.models.environment import environment
from hotswap.profiler.limits import measure

RESULTS = Path(__file__).parent / "results"
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
QUICK = {"blocks": 8, "block_seconds": 0.03, "search_seconds": 4.0}


class Results:
    """The result file: rows of one environment, written whole after each row of the table."""

    def __init__(self, path: Path, *, device: str) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._environment = environment() if device != "cpu" else environment() | {"device": "cpu"}
        self.limits: dict[str, Any] = {}
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        if kept and kept["environment"] == self._environment:
            self.rows = kept["rows"]
        elif kept:
            print(f"{path}: from another environment, its rows are measured again", file=sys.stderr)

    def holds(self, row: Row) -> bool:
        key = (row.family.task, row.shape, row.dtype_name)
        return any((r["task"], r["shape"], r["dtype"]) == key for r in self.rows)

    def add(self, made: list[dict[str, Any]]) -> None:
        key = (made[0]["task"], made[0]["shape"], made[0]["dtype"])
        self.rows = [r for r in self.rows if (r["task"], r["shape"], r["dtype"]) != key] + made
        order = {(r.family.task, r.shape, r.dtype_name): n for n, r in enumerate(rows(tuple(DTYPES.values())))}
        last = len(order)
        self.rows.sort(key=lambda r: order.get((r["task"], r["shape"], r["dtype"]), last))
        self.save()

    def save(self) -> None:
        body = {
            "suite": "kernels",
            "measured_at": datetime.now().astimezone().isoformat(timespec="seconds"),
            "environment": self._environment,
            "limits": self.limits,
            "rows": self.rows,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".partial")
        temporary.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.path)
        self.path.with_suffix(".csv").write_text(as_csv(self.rows), encoding="utf-8")
        title = f"Share of the measured limit, {self._environment['device']}"
        self.path.with_suffix(".svg").write_text(plot(self.rows, title) + "\n", encoding="utf-8")


@torch.no_grad()  # compiled code is guarded by it: once for all, else it compiles twice
def main() -> int:
    asked = _arguments()
    if asked.table is not None:
        print(markdown(json.loads(asked.table.read_text(encoding="utf-8"))["rows"]))
        return 0
    if asked.device == "auto" and not torch.cuda.is_available():
        print("kernels.py: left out, there is no CUDA device here; --device cpu runs it dry", file=sys.stderr)
        return 0
    device = "cpu" if asked.device == "cpu" else "cuda"
    if interpreted():
        _repair_interpreter()
    if asked.liger:
        sys.path.insert(0, str(asked.liger))
    where = "cpu" if device == "cpu" else re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    results = Results(asked.out or RESULTS / f"kernels-{where}.json", device=device)
    started = time.monotonic()
    limits = measure(device)
    read = _read_rate(device, limits.copy_gb_s)
    results.limits = limits.to_dict() | {"read_gb_s": read}
    effort = _effort(asked, device)
    longest, done, failed = 0.0, set(), 0
    for row in rows(tuple(DTYPES[d] for d in asked.dtypes)):
        row = _shrunk(row) if device == "cpu" else row
        if row.title in done or (results.holds(row) and not asked.fresh) or not _wanted(row, asked.only):
            continue
        done.add(row.title)  # shrunk, two rows may be the same
        begun = time.monotonic()
        if begun - started + longest > asked.seconds:
            print(f"{asked.seconds:.0f} s are spent; the same command goes on from here", file=sys.stderr)
            break
        try:
            results.add(made := measured(row, device, limits, read, effort))
        except RuntimeError as error:  # out of memory, or a device in a state that only a new process mends
            failed += 1
            print(f"{row.title}: {type(error).__name__}: {str(error).splitlines()[0][:300]}", file=sys.stderr)
            if failed > 1:
                return 3
            continue
        if device != "cpu":
            torch.cuda.empty_cache()
        longest = max(longest, time.monotonic() - begun)
        print(_line(row, made, time.monotonic() - begun), flush=True)
    print(results.path)
    return 3 if failed else 0


def _repair_interpreter() -> None:
    from hotswap.optimizer.codegen.triton_repair import repair  # it needs triton, which a CPU may lack

    repair()


def _read_rate(device: str, copy_gb_s: float) -> float:
    if device == "cpu":
        return copy_gb_s
    from hotswap.benchmarks.kernels_kit.read_rate import read_gb_s  # it needs triton, which a CPU may lack

    return max(copy_gb_s, read_gb_s(device))


def _effort(asked: argparse.Namespace, device: str) -> Effort:
    arms = asked.arms or (("eager", "fused torch op") if device == "cpu" else ALL)
    effort = Effort(arms=tuple(arms), starters=asked.starters, proposers=tuple(asked.proposer))
    if asked.quick or device == "cpu":
        effort = replace(effort, **QUICK)
    given = {k: getattr(asked, k) for k in ("blocks", "block_seconds", "search_seconds") if getattr(asked, k)}
    return replace(effort, **given)


def _wanted(row: Row, only: list[str]) -> bool:
    return not only or any(part in row.title for part in only)


def _shrunk(row: Row) -> Row:
    """Return the row at a size an interpreter can bear; odd widths stay odd, and no two sizes are equal by chance."""
    size = [min(s, 64 + 16 * n + s % 64) for n, s in enumerate(row.size)]
    size[row.family.rows] = min(row.size[row.family.rows], 5 + 16 * row.family.rows)
    return replace(row, size=tuple(size))


def _line(row: Row, made: list[dict[str, Any]], seconds: float) -> str:
    arms = {r["arm"]: r for r in made}
    ours, best = arms[OURS], best_rival(arms)
    took = f"{seconds:4.0f} s"
    if ours["us"] is None:
        return f"{row.title:44s} ours: none ({ours['note']}) {took}"
    beside = ""
    if best and best["ours_faster"]:
        faster = best["ours_faster"]
        ratio = f"{faster['median']:.2f}x [{faster['low']:.2f}, {faster['high']:.2f}]"
        beside = f"{best['us']:8.1f} {best['arm']:16.16s} {ratio}"
    goal = f"of {ours['at_most_us']:.0f}" if ours["at_most_us"] else ""
    made_by = f"{ours['proposer']} {' '.join(f'{k}={v}' for k, v in ours['knobs'].items())}"
    return f"{row.title:44s} {ours['us']:8.1f} {goal:8s} {ours['share_of_limit']:4.0%}  {beside}  {made_by} {took}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument(
        "--only", nargs="+", action="extend", default=[], help="rows whose title (task shape dtype) holds one of these"
    )
    parser.add_argument("--dtypes", nargs="+", choices=tuple(DTYPES), default=list(DTYPES))
    parser.add_argument(
        "--arms", nargs="+", choices=ALL, help="rivals to time (default: all; on a CPU eager and fused)"
    )
    parser.add_argument("--proposer", action="append", default=[], help="ask this one alone for our arm (default: all)")
    parser.add_argument("--quick", action="store_true", help="shorter blocks and searches")
    parser.add_argument("--blocks", type=int, help="interleaved blocks a side (8)")
    parser.add_argument("--block-seconds", type=float, help="least length of a block (0.2)")
    parser.add_argument("--search-seconds", type=float, help="search of our kernel, a row (10)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no row that would end later")
    parser.add_argument("--liger", type=Path, help="folder that holds liger_kernel, where it is not installed")
    parser.add_argument("--starters", type=Path, help="folder of published starter kernels (kernel_fn in NAME.py)")
    parser.add_argument("--out", type=Path, help="result file (benchmarks/results/kernels-<device>.json)")
    parser.add_argument("--fresh", action="store_true", help="measure again what the file holds")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print a result file as markdown, measure nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
