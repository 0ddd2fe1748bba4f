"""Find the winners that a run directory or the store holds. Reads only; what a winner may do is decided elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Literal, Protocol

from ..extractor.task import Extraction
from ..models.cache import cache_dir
from ..models.environment import environment
from ..models.errors import RecordError, SpecError
from ..optimizer.winner import Winner
from .results import Report, Tail


class HasFolder(Protocol):
    """A Run record: its directory is all that is needed of it."""

    @property
    def folder(self) -> str | Path: ...


RunLike = str | os.PathLike[str] | HasFolder


def run_folder(run: RunLike) -> Path:
    """Return the directory of `run`, a Run record or a path; raise SpecError where it is not a directory."""
    folder = Path(run) if isinstance(run, str | os.PathLike) else Path(run.folder)
    if not folder.is_dir():
        raise SpecError(
            f"run {str(folder)!r}: not a directory; expected what `hotswap run` wrote (`hotswap ls` lists runs)"
        )
    return folder


def load_winners(run: RunLike) -> tuple[Winner, ...]:
    """Return a run's winners in order of file names; raise RecordError where there are none, or two for a region."""
    folder = run_folder(run) / "winners"
    winners = tuple(Winner.load(path) for path in sorted(folder.glob("*.json")))
    if not winners:
        raise RecordError(f"{folder}: holds no winners; expected one JSON file a task; run `hotswap optimize` first")
    seen: dict[str, str] = {}
    for winner in winners:
        if winner.fingerprint in seen:
            other = seen[winner.fingerprint]
            raise RecordError(
                f"{folder}: tasks {other!r} and {winner.task!r} share fingerprint {winner.fingerprint}; "
                "expected one winner a region"
            )
        seen[winner.fingerprint] = winner.task
    return winners


def chosen_tail(run: RunLike) -> Tail:
    """Return the tail that a finished run measured as best, "eager" where it has not come that far."""
    report = run_folder(run) / "report.json"
    return Report.load(report).tail if report.exists() else "eager"


def chosen_way(run: RunLike) -> Literal["graph", "module"]:
    """Return the way a run's model was captured, which is how its winners fit; "graph" where it has no record."""
    extraction = run_folder(run) / "extraction.json"
    return Extraction.load(extraction).way if extraction.exists() else "graph"


def store_folder() -> Path:
    """Return this machine's part of the store of winners, used where no run is named. It may not exist yet.

    Another CPU, device, thread count or toolchain is another part: a kernel that won there need not win here.
    """
    key = hashlib.sha256(json.dumps(environment(), sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "store" / key


def store_winner(winner: Winner) -> Path:
    """Put a winner into the store, in the place of an earlier one for its region; return its file."""
    path = store_folder() / f"{winner.fingerprint}.json"
    winner.save(path)
    return path


def stored_winners() -> tuple[Winner, ...]:
    """Return the store's winners, the newest for each region; files of another user are refused, as they hold code."""
    newest: dict[str, Winner] = {}
    paths = sorted(store_folder().glob("**/*.json"), key=lambda p: (p.stat().st_mtime, p.name))
    for path in paths:
        owner = path.stat().st_uid
        if owner != os.getuid():
            raise RecordError(
                f"{path}: owned by uid {owner}, expected {os.getuid()}; kernels of another user are not run: remove it"
            )
        winner = Winner.load(path)
        newest[winner.fingerprint] = winner
    return tuple(newest.values())
