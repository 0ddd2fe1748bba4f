"""Time whole models: eager, torch.compile's modes, Liger and hotswap, in interleaved blocks, beside their floor.

usage: python benchmarks/models.py [--only TEXT] [--size full] [--seconds 570] [--rivals NAME ...] [--table FILE]

Each workload runs in a process of its own; where an arm ends it, it is measured again without that arm. Rows that the
result file holds from the same environment are kept: the same command goes on where the last one stopped. `--kernels
none` times rewrites and tails alone. Writes benchmarks/results/models-<device>.json. `--size tiny --device cpu` runs
the whole way dry.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
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

# What a workload imports only when it is built and compiled.
_IMPORTED_AHEAD = (
    "torch._inductor.compile_fx",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
)

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
    if asked.child:
        return _child(asked, device)
    where = "cpu" if device == "cpu" else re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    results = Results(asked.out or RESULTS / f"models-{where}.json", device)
    with contextlib.closing(Stable()) as stable:
        failed = _measure(asked, results, stable)
    print(results.path)
    return 3 if failed else 0


def _measure(asked: argparse.Namespace, results: Results, stable: Stable) -> int:
    """Measure the workloads that are asked for and not there; return how many failed."""
    started, longest, failed = time.monotonic(), _FIRST_GUESS_S if asked.seconds < float("inf") else 0.0, 0
    for number, title in _wanted(asked.size, asked.only):
        if results.holds(ROWS[number], asked.size) and not asked.fresh:
            continue
        begun = time.monotonic()
        left = asked.seconds - (begun - started)
        if left < longest:
            print(f"{title}: {left:.0f} s are left; the same command goes on from here", file=sys.stderr)
            break
        made = _in_processes(number, left, stable)
        if made is None:
            failed += 1
            print(f"{title}: not measured", file=sys.stderr)
            continue
        results.add(made)
        longest = max(0.0 if longest == _FIRST_GUESS_S else longest, time.monotonic() - begun)
        print(f"{line(made)}  {time.monotonic() - begun:.0f} s", flush=True)
    return failed


def _in_processes(number: int, left: float, stable: Stable) -> list[dict[str, Any]] | None:
    """Return the rows of one workload, measured by this file in processes of their own; None where that failed.

    An arm that ends one (a CUDA error, a crash) is left out of the next, and the rows say so. left: seconds.
    """
    ends, without = time.monotonic() + left, dict[str, str]()
    while time.monotonic() < ends:
        made = _in_a_process(number, ends - time.monotonic(), without, stable)
        if made is None or isinstance(made, list):
            return made
        arm = made["lost"]
        if arm in without or arm == "eager":
            return None
        without[arm] = made["note"]
        print(f"{ROWS[number].model}: {arm} ended the process ({made['note']}); again without it", file=sys.stderr)
    return None


def _in_a_process(number: int, left: float, without: Mapping[str, str], stable: Stable) -> Any:
    """Return what one process made of a workload: rows, the arm that ended it, or None where that is not known."""
    with tempfile.TemporaryDirectory() as scratch:
        found, at = Path(scratch) / "rows.json", Path(scratch) / AT_WORK
        child = stable.take({"number": number, "without": dict(without), "out": str(found)})
        try:
            status = child.wait(left + _GRACE_S if left < float("inf") else None)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            print(f"{ROWS[number].model}: ended after {left:.0f} s", file=sys.stderr)
            return None
        if status == 0 and found.exists():
            return json.loads(found.read_text(encoding="utf-8"))
        arm = at.read_text(encoding="utf-8") if at.exists() else ""
        return {"lost": arm, "note": f"the process died with status {status}"} if arm else None


class Stable:
    """Keeps one process ready that has imported what a workload needs, which takes as long as to time it."""

    def __init__(self) -> None:
        self._ready = self._start()

    def take(self, asked: Mapping[str, Any]) -> subprocess.Popen[str]:
        """Return the ready process, told what to measure, and start the next: it imports while this one compiles."""
        taken, self._ready = self._ready, self._start()
        assert taken.stdin is not None
        with contextlib.suppress(BrokenPipeError), taken.stdin:  # one that could not start says so by its status
            taken.stdin.write(json.dumps(asked) + "\n")
        return taken

    def close(self) -> None:
        assert self._ready.stdin is not None
        self._ready.stdin.close()
        self._ready.wait()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, *sys.argv[1:], "--child"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)


def _child(asked: argparse.Namespace, device: str) -> int:
    for module in _IMPORTED_AHEAD:
        importlib.import_module(module)
    said = sys.stdin.readline()
    return _one(asked, device, **json.loads(said)) if said else 0


def _one(asked: argparse.Namespace, device: str, number: int, without: Mapping[str, str], out: str) -> int:
    """Measure one workload and write its rows, or which arm was lost, to `out`."""
    row = ROWS[number]
    if asked.liger:
        sys.path.insert(0, str(asked.liger))
    rivals = tuple(asked.rivals) + ((LIGER,) if asked.liger else ())
    tails = tuple(asked.tails or (("eager", "inductor") if device == "cpu" else ("cudagraph", "inductor-cudagraph")))
    how = Asked(asked.size, device, rivals, tails, asked.kernels, asked.row_seconds, without=without)
    if asked.race_seconds:
        how = replace(how, race_seconds=asked.race_seconds)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"  {time.monotonic() - started:5.0f} s  {row.model}: {text}", file=sys.stderr, flush=True)

    try:
        made: Any = measured(row, how, say, Watch(Path(out).parent / AT_WORK))
    except ArmLost as lost:
        traceback.print_exception(lost)
        made = {"lost": lost.arm, "note": lost.note}
    Path(out).write_text(json.dumps(made) + "\n", encoding="utf-8")
    return 0


def _wanted(size: Size, only: list[str]) -> list[tuple[int, str]]:
    """Return number and title of the workloads asked for, in the order they are asked for."""
    titles = [(number, f"{row.workload(size)} {row.shape(size)}") for number, row in enumerate(ROWS)]
    asked = [[one for one in titles if part in one[1]] for part in only or [""]]
    return list(dict.fromkeys(one for found in asked for one in found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--size", choices=get_args(Size), default="full")
    parser.add_argument(
        "--only", action="append", default=[], help="workloads whose title (model@size shape) holds this, first"
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
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
