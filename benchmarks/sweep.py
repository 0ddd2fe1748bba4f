"""Try every model type of transformers, and models from elsewhere: patch with stand-ins, verify, unpatch, and list it.

usage: python benchmarks/sweep.py [--only WORD,..] [--part I/N] [--jobs N] [--again OUTCOME,..] [--no-derive] [--table]

Rows are kept as they come: a sweep that was stopped goes on where it was. A table alone: --table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

HOME = Path(__file__).parent
RESULT = HOME / "results" / "sweep.json"
TABLE = HOME.parent / "docs" / "sweep.md"


def main() -> int:
    options = _options()
    # One thread a model: two cores serve two models, and an OpenMP pool does not survive a fork.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    kept = _kept(options.out)
    if not options.table:
        _sweep(options, kept)
    from hotswap.benchmarks.sweep_kit.table import table

    if kept["rows"] and options.out == RESULT:
        TABLE.write_text(table(kept), encoding="utf-8")
    print(f"{len(kept['rows'])} models: {dict(Counter(row['outcome'] for row in kept['rows'].values()))}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="names, or parts of them, with commas between")
    parser.add_argument("--part", default="0/1", help="I/N: every Nth model, from the Ith on")
    parser.add_argument("--again", default="", help="outcomes whose rows are made anew, or 'all'")
    parser.add_argument("--jobs", type=int, default=1, help="models at once")
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU time a model may take, and go without")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="memory a model may take")
    parser.add_argument("--no-derive", action="store_true", help="verify on the example inputs alone")
    parser.add_argument("--table", action="store_true", help="only make the table from the rows there are")
    parser.add_argument("--out", type=Path, default=RESULT)
    return parser.parse_args()


def _sweep(options: argparse.Namespace, kept: dict[str, Any]) -> None:
    from hotswap.benchmarks.sweep_kit.server import Bounds, run_each
    from hotswap.benchmarks.sweep_kit.subjects import loaded, measured_limits, names, trial, warmed

    versions, machine = loaded()
    work = warmed(trial(measured_limits(), derive=not options.no_derive))
    if kept["versions"] != versions:
        kept |= {"versions": versions, "machines": [], "rows": {}}
    kept["of"] = len(names())
    kept["machines"] = sorted({*kept["machines"], machine})
    bounds = Bounds(options.seconds, int(options.gigabytes * 2**30), options.jobs)
    todo = _chosen(names(), options, kept["rows"])
    for count, row in enumerate(run_each(todo, work, bounds), 1):
        kept["rows"][row.name] = row.to_dict()
        kept["made"] = datetime.now().astimezone().isoformat(timespec="seconds")
        _keep(options.out, kept)
        print(
            f"{count}/{len(todo)} {row.name}: {row.outcome} ({row.seconds.get('all')} s) {row.why[:150]}",
            file=sys.stderr,
        )


def _chosen(every: list[str], options: argparse.Namespace, rows: dict[str, Any]) -> list[str]:
    first, _, step = options.part.partition("/")
    again = set(options.again.split(",")) if options.again else set()
    words = [word for word in options.only.split(",") if word]
    found = []
    for name in every[int(first) :: int(step)]:
        row = rows.get(name)
        if words and not any(
            word == name.partition(":")[2] or word == name or (word.endswith(":") and name.startswith(word))
            for word in words
        ):
            continue
        if row is None or "all" in again or row["outcome"] in again:
            found.append(name)
    return found


def _kept(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"versions": None, "machines": [], "made": None, "of": 0, "rows": {}}
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def _keep(path: Path, kept: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    text = json.dumps({**kept, "rows": dict(sorted(kept["rows"].items()))}, indent=1) + "\n"
    # Where the checkout lies says nothing to a reader.
    beside.write_text(text.replace(f"{HOME.parent.resolve()}/", ""), encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
