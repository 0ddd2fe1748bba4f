"""Time whole models: eager, torch.compile's modes, Liger and hotswap, in interleaved blocks, beside their floor.

usage: python benchmarks/models.py [--only TEXT] [--size full] [--seconds 570] [--rivals NAME ...] [--table FILE]

Each workload runs in a process of its own; where an arm ends it, it is measured again without that arm. Rows that the
result file holds from the same environment are kept: the same command goes on where the last one stopped. `--kernels
none` times rewrites and tails alone. Writes benchmarks/results/models-<device>.json. `--size tiny --device cpu` runs
the whole way dry.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import torch

from hotswap.benchmarks.models_kit.arms import COMPILE_MODES, LIGER
from hotswap.benchmarks.models_kit.blame import ArmLost, Watch
from hotswap.benchmarks.models_kit.race import Asked, measured
from hotswap.benchmarks.models_kit.suite import ROWS, Row, Size
from hotswap.benchmarks.models_kit.table import line, markdown, workloads
from hotswap.integrator.backend import TAILS
from hotswap.models.environment import environment

RESULTS = Path(__file__).parent / "results"

# A row is begun only if as long as the longest so far is left; of the first nothing is known.
_FIRST_GUESS_S = 120.0
# Names the arm at work, beside the rows that a process is to write.
AT_WORK = "arm.txt"

# A process that compiles for ever is ended; what it was doing is said in its row.
_GRACE_S = 60.0


class Results:
    """The result file: rows of one environment, written whole after each workload."""

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._environment = environment() if device != "cpu" else environment() | {"device": "cpu"}
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        if kept and kept["environment"] == self._environment:
            self.rows = kept["rows"]
        elif kept:
            print(f"{path}: from another environment, its rows are measured again", file=sys.stderr)

    def holds(self, row: Row, size: Size) -> bool:
        return (row.workload(size), row.shape(size)) in workloads(self.rows)

    def add(self, made: list[dict[str, Any]]) -> None:
        key = (made[0]["workload"], made[0]["shape"])
        self.rows = [r for r in self.rows if (r["workload"], r["shape"]) != key] + made
        body = {
            "suite": "models",
            "measured_at": datetime.now().astimezone().isoformat(timespec="seconds"),
            "environment": self._environment,
            "rows": self.rows,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".partial")
        temporary.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.path)


def main() -> int:
    asked = _arguments()
    if asked.table is not None:
        print(markdown(json.loads(asked.table.read_text(encoding="utf-8"))["rows"]))
        return 0
    if asked.device == "auto" and not torch.cuda.is_available():
        print(
            "models.py: left out, there is no CUDA device here; --size tiny --device cpu runs it dry", file=sys.stderr
        )
        return 0
    device = "cpu" if asked.device == "cpu" else "cuda"
    if asked.one is not None:
        return _one(asked, device)
    where = "cpu" if device == "cpu" else re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    results = Results(asked.out or RESULTS / f"models-{where}.json", device)
    started, longest, failed = time.monotonic(), _FIRST_GUESS_S if asked.seconds < float("inf") else 0.0, 0
    for number, row in enumerate(ROWS):
        title = f"{row.workload(asked.size)} {row.shape(asked.size)}"
        if (results.holds(row, asked.size) and not asked.fresh) or not _wanted(title, asked.only):
            continue
        begun = time.monotonic()
        left = asked.seconds - (begun - started)
        if left < longest:
            print(f"{title}: {left:.0f} s are left; the same command goes on from here", file=sys.stderr)
            break
        made = _in_processes(number, left)
        if made is None:
            failed += 1
            print(f"{title}: not measured", file=sys.stderr)
            continue
        results.add(made)
        longest = max(0.0 if longest == _FIRST_GUESS_S else longest, time.monotonic() - begun)
        print(f"{line(made)}  {time.monotonic() - begun:.0f} s", flush=True)
    print(results.path)
    return 3 if failed else 0


def _in_processes(number: int, left: float) -> list[dict[str, Any]] | None:
    """Return the rows of one workload, measured by this file in processes of their own; None where that failed.

    An arm that ends one (a CUDA error, a crash) is left out of the next, and the rows say so. left: seconds.
    """
    ends, without = time.monotonic() + left, dict[str, str]()
    while time.monotonic() < ends:
        made = _in_a_process(number, ends - time.monotonic(), without)
        if made is None or isinstance(made, list):
            return made
        arm = made["lost"]
        if arm in without or arm == "eager":
            return None
        without[arm] = made["note"]
        print(f"{ROWS[number].model}: {arm} ended the process ({made['note']}); again without it", file=sys.stderr)
    return None


def _in_a_process(number: int, left: float, without: Mapping[str, str]) -> Any:
    """Return what one process made of a workload: rows, the arm that ended it, or None where that is not known."""
    with tempfile.TemporaryDirectory() as scratch:
        found, at = Path(scratch) / "rows.json", Path(scratch) / AT_WORK
        command = [sys.executable, __file__, *sys.argv[1:], "--one", str(number), "--out", str(found)]
        command += ["--without", json.dumps(dict(without))]
        try:
            done = subprocess.run(command, check=False, timeout=left + _GRACE_S if left < float("inf") else None)
        except subprocess.TimeoutExpired:
            print(f"{ROWS[number].model}: ended after {left:.0f} s", file=sys.stderr)
            return None
        if done.returncode == 0 and found.exists():
            return json.loads(found.read_text(encoding="utf-8"))
        arm = at.read_text(encoding="utf-8") if at.exists() else ""
        return {"lost": arm, "note": f"the process died with status {done.returncode}"} if arm else None


def _one(asked: argparse.Namespace, device: str) -> int:
    row = ROWS[asked.one]
    if asked.liger:
        sys.path.insert(0, str(asked.liger))
    rivals = tuple(asked.rivals) + ((LIGER,) if asked.liger else ())
    tails = tuple(asked.tails or (("eager", "inductor") if device == "cpu" else ("cudagraph", "inductor-cudagraph")))
    how = Asked(asked.size, device, rivals, tails, asked.kernels, asked.row_seconds, without=asked.without)
    if asked.race_seconds:
        how = replace(how, race_seconds=asked.race_seconds)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"  {time.monotonic() - started:5.0f} s  {row.model}: {text}", file=sys.stderr, flush=True)

    try:
        made: Any = measured(row, how, say, Watch(asked.out.parent / AT_WORK))
    except ArmLost as lost:
        traceback.print_exception(lost)
        made = {"lost": lost.arm, "note": lost.note}
    asked.out.write_text(json.dumps(made) + "\n", encoding="utf-8")
    return 0


def _wanted(title: str, only: list[str]) -> bool:
    return not only or any(part in title for part in only)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--size", choices=get_args(Size), default="full")
    parser.add_argument(
        "--only", action="append", default=[], help="workloads whose title (model@size shape) holds this"
    )
    parser.add_argument("--rivals", nargs="*", choices=tuple(COMPILE_MODES), default=["compile", "reduce-overhead"])
    parser.add_argument("--tails", nargs="+", choices=TAILS, help="tails of ours to try; the quickest races")
    parser.add_argument("--kernels", choices=("store", "none"), default="store", help="ours with the store's kernels")
    parser.add_argument("--liger", type=Path, help="folder that holds liger_kernel, where it is not installed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no workload that would end later")
    parser.add_argument(
        "--row-seconds", type=float, default=150.0, help="build no further arm of a workload after this"
    )
    parser.add_argument("--race-seconds", type=float, help="what the interleaved blocks of a workload may take (25)")
    parser.add_argument("--out", type=Path, help="result file (benchmarks/results/models-<device>.json)")
    parser.add_argument("--fresh", action="store_true", help="measure again what the file holds")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print a result file as markdown, measure nothing")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--without", type=json.loads, default={}, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
