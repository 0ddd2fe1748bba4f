"""A run on disk: `runs/<time>-<model>/`, where every part loads again and finished work is never repeated.

run.json      the Run record: settings with their sources, stages done     tasks/<rank>-<name>/  one folder a task
env.json      versions, CPU, threads                                       winners/<name>.json   how each task ended
profile.json, trace.json.gz, tb/                                           ledger.db             every attempt
extraction.json                                                            patched/              the exported package
                                                                           report.{json,md,html}
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from ..models.errors import HotswapError, RecordError, RecordLocked, ResourceExhausted, SpecError
from ..models.record import Record
from . import run_lock

Stage = Literal["profile", "extract", "optimize", "integrate"]
STAGES: tuple[Stage, ...] = ("profile", "extract", "optimize", "integrate")

RUNS = Path("runs")

_SAYS_NOTHING = frozenset({"model", "factory", "checkpoint", "main", "snapshot"})


@dataclass(frozen=True)
class Run(Record):
    """What a run was asked to do and how far it came.

    model: the spec, or the class name of a model handed over in Python. stages: finished ones, each with its seconds.
    settings: resolved values; sources: where each came from. folder: where it was read from.
    """

    model: str
    started: str
    version: str
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    folder: str = ""

    @property
    def next_stage(self) -> Stage | None:
        """The first stage that is not done, None when all are."""
        return next((stage for stage in STAGES if stage not in self.stages), None)


class RunDirectory:
    """A run directory that this process writes to; a context manager that gives it up at the end."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder = folder
        self.run = run

    @classmethod
    def create(
        cls,
        model: str,
        *,
        out: Path | None = None,
        settings: Mapping[str, Any] | None = None,
        sources: Mapping[str, str] | None = None,
        seed: int = 0,
        now: datetime | None = None,
    ) -> Self:
        """Make and lock a new run directory: `out`, or `runs/<time>-<model>`.

        Raises SpecError where `out` holds something, RecordLocked where it is in use, ResourceExhausted on a bad disk.
        """
        from .. import __version__

        now = now or datetime.now().astimezone()
        folder, made = _new_folder(model, out, now)
        try:
            run_lock.acquire(folder)
            try:
                # Asked again under the lock: of two processes with one --out, one gets here first.
                if (folder / "run.json").exists():
                    raise _taken(folder)
                started = now.isoformat(timespec="seconds")
                run = Run(model, started, __version__, seed, dict(settings or {}), dict(sources or {}), {}, str(folder))
                run.save(folder / "run.json")
            except BaseException:
                run_lock.release(folder)
                raise
        except ResourceExhausted:
            if made:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(folder, run)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Lock an existing run directory to continue it.

        Raises RecordError where it is none or cannot be read, RecordLocked where a live process owns it.
        """
        run = load_run(folder)
        run_lock.acquire(folder)
        return cls(folder, run)

    @property
    def environment(self) -> Path:
        return self.folder / "env.json"

    @property
    def profile(self) -> Path:
        return self.folder / "profile.json"

    @property
    def trace(self) -> Path:
        return self.folder / "trace.json.gz"

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tb"

    @property
    def extraction(self) -> Path:
        return self.folder / "extraction.json"

    @property
    def tasks(self) -> Path:
        return self.folder / "tasks"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.db"

    @property
    def winners(self) -> Path:
        return self.folder / "winners"

    @property
    def patched(self) -> Path:
        return self.folder / "patched"

    def report(self, form: Literal["json", "md", "html"]) -> Path:
        """Return the path of the report in one of its forms."""
        return self.folder / f"report.{form}"

    def done(self, stage: Stage) -> bool:
        """Whether a stage was finished, now or before an interruption."""
        return stage in self.run.stages

    def finish(self, stage: Stage, seconds: float) -> None:
        """Mark a stage as finished, once all that it writes is on disk. seconds: of this attempt at it."""
        self.run = replace(self.run, stages={**self.run.stages, stage: seconds})
        self.run.save(self.folder / "run.json")

    def close(self) -> None:
        """Let other processes write to the directory."""
        run_lock.release(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def load_run(folder: Path) -> Run:
    """Return the Run record of a directory, without locking it; raise RecordError where there is none to be read."""
    if not folder.is_dir():
        raise RecordError(f"{folder}: no such directory; expected a run directory (`hotswap ls` lists them)")
    if not (folder / "run.json").exists():
        raise RecordError(f"{folder}: not a run directory, it has no run.json (`hotswap ls` lists runs)")
    return replace(Run.load(folder / "run.json"), folder=str(folder))  # a run may have been moved since


def _new_folder(model: str, out: Path | None, now: datetime) -> tuple[Path, bool]:
    """Return the folder of a new run, and whether it was made here."""
    try:
        if out is None:
            return _unused(RUNS, f"{now:%Y%m%d-%H%M%S}-{slug(model)}"), True
        if out.exists() and (not out.is_dir() or any(p.name != run_lock.NAME for p in out.iterdir())):
            raise _taken(out)
        made = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        where = out or RUNS
        raise ResourceExhausted(f"{where}: cannot be made ({error.strerror}); free space or choose --out") from error
    return out, made


def _unused(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        folder = root / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise ResourceExhausted(f"{root / name}: a thousand runs began in this second; choose another --out")


def _taken(out: Path) -> HotswapError:
    if not (out / "run.json").exists():
        return SpecError(f"--out {out}: exists and is not an empty folder; choose another")
    if run_lock.holder(out) is not None:
        return RecordLocked(f"{out}: in use by process {run_lock.holder(out)}; wait for it or choose another --out")
    return SpecError(f"--out {out}: holds a run already; `hotswap resume {out}` continues it, or choose another")


def slug(model: str) -> str:
    """Return the part of a model's name that fits a folder name: the last piece of a path, id or `file.py:factory`."""
    pieces = [piece for piece in re.split(r"[/\\:]", model) if piece]
    while len(pieces) > 1 and pieces[-1].lower() in _SAYS_NOTHING:
        pieces.pop()
    return re.sub(r"[^a-z0-9.]+", "-", "".join(pieces[-1:]).lower()).strip("-.")[:40] or "model"
