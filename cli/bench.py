"""`hotswap bench`: the benchmark suites of a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from ..models.errors import EnvironmentMissing, SpecError
from ..models.suggest import did_you_mean
from .options import examples

_SUITES = Path(__file__).parents[1] / "benchmarks"


@click.command(
    epilog=examples("hotswap bench", "hotswap bench kernels --only rmsnorm", "hotswap bench models --table FILE"),
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("suite", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(suite: str | None, arguments: tuple[str, ...]) -> None:
    """Run SUITE of a checkout's benchmarks/ with its own ARGUMENTS; without SUITE, list them.

    Results go to benchmarks/results/. `hotswap bench SUITE --help` tells what a suite takes.
    """
    suites = {path.stem: path for path in sorted(_SUITES.glob("*.py"))}
    if not suites:
        raise EnvironmentMissing(
            f"{_SUITES}: no benchmark suites here; they come with a checkout, not with an installed package: clone one"
        )
    if suite is None:
        for name, path in suites.items():
            click.echo(f"{name:<18} {path.read_text(encoding='utf-8').splitlines()[0].strip(chr(34))}")
        return
    if suite not in suites:
        raise SpecError(f"suite {suite!r}: none of {', '.join(suites)}{did_you_mean(suite, suites)}")
    sys.exit(subprocess.run([sys.executable, str(suites[suite]), *arguments], check=False).returncode)
