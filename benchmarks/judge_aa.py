"""A/A: the reference against itself, again and again. Counts the 99% intervals that exclude 1, and swaps the sides.

    python benchmarks/judge_aa.py [--runs 100] [--minutes 9] [--block 0.2] [--rows 256] [--width 1024] [--out FILE]

One verdict shows that the reference's own text is accepted; then each run races it, in a clean process, against the
reference in eager: the same kernel on both sides, in workers of the same form. A run times 2 sides of 8 blocks. At most
5 of 100 may be called different. Swapped sides must give the reciprocal, exactly.
Run it on a machine that does nothing else. Writes benchmarks/results/judge-aa.json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path

from hotswap.benchmarks.judge_throughput import REFERENCE, write_task
from hotswap.models.environment import environment
from hotswap.optimizer.judge import Judge
from hotswap.optimizer.timing import ratio_interval
from hotswap.optimizer.verdict import Race

SAME = REFERENCE + "\ndef kernel(x, weight):\n    return reference(x, weight)\n"


def is_reciprocal(race: Race) -> bool:
    """Whether the sides of a race, swapped, give the reciprocal of its interval."""
    sides = {arm.name: arm.samples_us for arm in race.arms}
    there = ratio_interval(sides["eager"], sides["candidate"], seed=0)
    back = ratio_interval(sides["candidate"], sides["eager"], seed=0)
    pairs = ((back.median, there.median), (back.low, there.high), (back.high, there.low))
    return all(math.isclose(b, 1 / t, rel_tol=1e-9) for b, t in pairs)


def _fits(began: float, runs: int, minutes: float) -> bool:
    """Whether one more run, as long as those before it, ends in time; the first one always does."""
    took = time.monotonic() - began
    return runs == 0 or took * (runs + 1) / runs < 60 * minutes


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run that would end later")
    parser.add_argument("--block", type=float, default=0.2)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "judge-aa.json")
    args = parser.parse_args()
    intervals, reciprocal = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_task(Path(scratch) / "rmsnorm", args.rows, args.width)
        with Judge(folder, inductor=False, block_s=args.block, rounds=args.rounds) as judge:
            verdict = judge.verdict(SAME)
            if not verdict.accepted:
                raise SystemExit(f"the reference itself was rejected at {verdict.stage}: {verdict.reason}")
            began = time.monotonic()
            while len(intervals) < args.runs and _fits(began, len(intervals), args.minutes):
                # Every run is timed in full: those that screening likes would be a selection.
                (race,) = judge.race(SAME + f"# run {len(intervals)}\n")
                intervals.append(race.speedup["eager"])
                reciprocal += is_reciprocal(race)
            seconds = time.monotonic() - began
    figures = {
        "runs": len(intervals), "seconds_a_run": seconds / len(intervals),
        "called_different": sum(i.excludes(1.0) for i in intervals),
        "swapped_sides_give_the_reciprocal": reciprocal,
        "medians": [i.median for i in intervals], "median_of_medians": statistics.median(i.median for i in intervals),
        "widest_interval": max(i.high / i.low for i in intervals), "block_s": args.block, "rounds": args.rounds,
    }  # fmt: skip
    args.out.write_text(json.dumps(figures | {"environment": environment()}, indent=1) + "\n")
    print(json.dumps({k: v for k, v in figures.items() if k != "medians"}, indent=1))


if __name__ == "__main__":
    main()
