"""`hotswap profile`: where a model spends its time, and how far each op is from what this machine can do."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import note, print_json, results
from .options import MODEL_SETTINGS, examples, json_option, load_options, model_options, resolved, settings_options

if TYPE_CHECKING:
    from ..models.workload import Workload
    from ..profiler.recording import Profile

EXAMPLES = examples(
    "hotswap profile ./all-MiniLM-L6-v2 --batch 8 --seq-len 128",
    "hotswap profile model.py:make --group-by module --row-limit 20",
    "hotswap profile gpt2@tiny --out profile.json --trace trace.json.gz --json",
)


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Save the profile record here.")
@click.option(
    "--trace", type=click.Path(path_type=Path, dir_okay=False), help="Keep the Chrome trace here (.gz packs it)."
)
@click.option(
    "--tensorboard", type=click.Path(path_type=Path, file_okay=False), help="Write a TensorBoard log directory."
)
@click.option(
    "--sort-by", type=click.Choice(["self", "calls", "headroom", "module"]), default="self", show_default=True
)
@click.option("--group-by", type=click.Choice(["shape", "op", "module", "row"]), default="shape", show_default=True)
@click.option("--row-limit", type=click.IntRange(min=1), default=30, show_default=True, help="Lines in a table.")
@click.option(
    "--steps", type=click.IntRange(min=1), default=3, show_default=True, help="Recorded steps; the median counts."
)
@click.option("--refresh-limits", is_flag=True, help="Measure this machine again, keep the best of both.")
@json_option
@model_options
@settings_options(*MODEL_SETTINGS)
def command(
    model: str,
    out: Path | None,
    trace: Path | None,
    tensorboard: Path | None,
    refresh_limits: bool,
    steps: int,
    as_json: bool,
    inputs: str | None,
    trust_remote_code: bool,
    random_weights: bool,
    **flags: Any,
) -> None:
    """Show where MODEL spends its time.

    Each line is an op the dispatcher ran: its own time, counted once; its share of the step; the least time it could
    take on this machine (floor) and how many times slower it is (headroom). "other" is what no op accounts for.
    """
    from ..models.spec import load

    settings = resolved(flags)
    options = load_options(settings, inputs=inputs, trust_remote_code=trust_remote_code, random_weights=random_weights)
    _set_threads(settings.threads)
    workload = load(model, options)
    view = {name: flags[name] for name in ("sort_by", "group_by", "row_limit")}
    profile = _record(workload, trace, tensorboard, steps, refresh_limits=refresh_limits)
    if out is not None:
        profile.save(out)
    _show(profile, view, as_json=as_json)


def _set_threads(threads: int | None) -> None:
    if threads:
        import torch

        torch.set_num_threads(threads)


def _record(
    workload: Workload, trace: Path | None, tensorboard: Path | None, steps: int, *, refresh_limits: bool
) -> Profile:
    from ..profiler.limits import measure
    from ..profiler.record import record, trace_paths
    from ..profiler.step import device_of

    limits = measure(str(device_of(workload.model, workload.calls[0])), refresh=refresh_limits)
    with ExitStack() as stack:
        if trace is None and tensorboard is not None:
            trace = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "trace.json.gz"
        profile = record(workload, trace=trace, limits=limits, steps=steps)
        if tensorboard is not None and trace is not None:
            from ..profiler.tensorboard import write_tensorboard

            missing = write_tensorboard(profile, trace_paths(trace, workload.calls), tensorboard)
            if missing:
                note(missing)
    return profile


def _show(profile: Profile, view: dict[str, Any], *, as_json: bool) -> None:
    from ..profiler.table import tables, to_json

    if as_json:
        print_json(to_json(profile, **view))
        return
    for table in tables(profile, width=max(80, results().width), **view):
        results().print(table)
        results().print()
    for line in profile.notes:
        note(line)
