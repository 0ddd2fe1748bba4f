"""`hotswap integrate RUN`: put the winners into the model and measure the whole."""

from __future__ import annotations

import time
from typing import Any

import click

from ..models.errors import RecordError
from .console import progress
from .options import WHOLE_SETTINGS, examples, json_option, settings_options
from .places import find_run
from .request import Request, command_line, resumable
from .run import print_run

EXAMPLES = examples("hotswap integrate last", "hotswap integrate runs/minilm --mode inductor --baselines all")


@click.command(epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@settings_options(*WHOLE_SETTINGS, config=False)
@json_option
def command(run: str, as_json: bool, **flags: Any) -> None:
    """Put the winners of RUN into its model, verify the whole, keep what pays, and write the report and patched/.

    Goes on from what `hotswap optimize` found; on a finished run it measures again.
    """
    from ..extractor.task import Extraction
    from ..integrator.integrate import integrate
    from ..integrator.run_directory import RunDirectory
    from ..profiler.recording import Profile

    with resumable(RunDirectory.open(find_run(run))) as directory, progress() as bars:
        if not directory.done("optimize"):
            raise RecordError(
                f"{directory.folder}: was not searched to its end; `hotswap resume {directory.folder}` does"
            )
        started = time.monotonic()
        request = Request.of_run(directory.run, flags)
        profile, extraction = Profile.load(directory.profile), Extraction.load(directory.extraction)
        workload = request.workload()
        integrate(directory, workload, profile, extraction, request.settings, bars, command=command_line())
        directory.finish("integrate", time.monotonic() - started)
    print_run(directory.folder, as_json=as_json)
