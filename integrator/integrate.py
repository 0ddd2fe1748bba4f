"""Put the winners into the model, keep what the whole model gains from, and write the report and the package.

Order: choose the tail by measurement, ablate inside the model and drop what does not pay, verify the whole model with
what is left (a failure is bisected to its task, which is dropped), measure.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ..extractor.task import Extraction
from ..models.environment import environment
from ..models.progress import Progress
from ..models.settings import Settings
from ..models.spec import LoadOptions
from ..models.workload import Workload
from ..optimizer.ledger import Ledger
from ..optimizer.winner import Winner
from ..profiler.recording import Profile
from .compose import headline_us, op_rows, predicted_speedup, skipped_rows, stories, waterfall
from .export import Made, export
from .integration import Findings, Integration
from .llm_note import llm_notes
from .report.render import write
from .results import Report
from .rewrites.parameter_packs import packs_of
from .run_directory import RunDirectory
from .winners import store_winner


def integrate(
    directory: RunDirectory,
    workload: Workload,
    profile: Profile,
    extraction: Extraction,
    settings: Settings,
    progress: Progress,
    *,
    command: str = "",
) -> Report:
    """Return the report of the finished run; it is on disk in all its forms, and `patched/` beside it."""
    started = time.monotonic()
    found = Findings()
    work = Integration(directory, workload, settings, progress, found, extraction)

    def report() -> Report:
        seconds = {**directory.run.stages, "integrate": time.monotonic() - started}
        made = _compose(directory, profile, extraction, found, seconds, command)
        write(made, directory.folder)
        return made

    report()  # a run stopped from here on has a partial report, marked so
    work.measure_and_choose()
    packs_of(workload.model).restore()
    for winner in work.kept.values():
        store_winner(winner)
    if work.pays:
        export(
            directory.patched,
            tuple(work.kept.values()),
            _made(directory, workload, settings),
            tail=found.tail,
            off=work.rewrites_off,
        )
    found.complete = True
    return report()


def _made(directory: RunDirectory, workload: Workload, settings: Settings) -> Made:
    """Return what an export says of the model: how it was loaded, so that `load()` can do it again."""
    asked = directory.run.settings
    options = LoadOptions(
        random_weights=bool(asked.get("random_weights", False)),
        trust_remote_code=bool(asked.get("trust_remote_code", False)),
        dtype=settings.dtype,
        device=settings.device,
        batch=settings.batch,
        seq_len=settings.seq_len,
        inputs=asked.get("inputs"),
        seed=settings.seed,
    )
    return Made(type(workload.model).__name__, workload.spec, options)


def _compose(
    directory: RunDirectory,
    profile: Profile,
    extraction: Extraction,
    found: Findings,
    seconds: Mapping[str, float],
    command: str,
) -> Report:
    """Return the report as far as the findings go."""
    winners = {w.fingerprint: w for w in _winners(directory)}
    with closing(Ledger.read(directory.ledger)) as ledger:
        here = environment()
        baselines = {t.fingerprint: race for t in extraction.tasks if (race := ledger.baseline(t, here)) is not None}
        attempts = {t.fingerprint: ledger.attempts(t.fingerprint) for t in extraction.tasks}
    rows = op_rows(extraction, winners, baselines, found.ablations)
    before_us = headline_us(found.ends, "eager") or sum(c.step_us * c.weight for c in profile.calls)
    after_us = headline_us(found.ends, "hotswap")
    predicted = {row.task: row.predicted_gain for row in rows}
    return Report(
        model=_shown(directory.run.model),
        device=profile.device,
        dtype=directory.run.settings.get("dtype", "auto"),
        complete=found.complete,
        tail=found.tail,
        started=directory.run.started,
        seconds=sum(seconds.values()),
        seconds_by_stage=dict(seconds),
        end_to_end=tuple(found.ends),
        checks=found.checks,
        engagement=found.engagement,
        rows=rows,
        ablations=tuple(replace(a, predicted=predicted.get(a.task, 1.0)) for a in found.ablations),
        stories=stories(extraction, directory.tasks, winners, baselines, attempts),
        skipped=skipped_rows(extraction),
        before=waterfall(rows, extraction, before_us, after=False),
        after=waterfall(rows, extraction, after_us, after=True) if after_us else (),
        predicted_speedup=predicted_speedup(rows),
        copy_gb_s=profile.limits.copy_gb_s,
        matmul_tflop_s=profile.limits.matmul_tflop_s,
        coverage=extraction.covered,
        breaks=extraction.breaks,
        notes=(*profile.notes, *extraction.notes, *llm_notes(directory.folder), *found.notes),
        environment=environment(),
        patched="patched" if (directory.patched / "__init__.py").exists() else None,
        command=command,
    )


def _shown(spec: str) -> str:
    """Return a model's name for a reader: of a path, the last two parts."""
    return "/".join(Path(spec).parts[-2:]) if Path(spec).is_absolute() else spec


def _winners(directory: RunDirectory) -> tuple[Winner, ...]:
    return tuple(Winner.load(path) for path in sorted(directory.winners.glob("*.json")))
