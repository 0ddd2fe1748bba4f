"""`hotswap export RUN DIR`: the winners of a run as torch ops, or as layers for Hugging Face kernels."""

from __future__ import annotations

from pathlib import Path

import click

from .console import note
from .options import examples
from .places import find_run

EXAMPLES = examples("hotswap export last winners", "hotswap export runs/minilm my_kernels --as layers")


@click.command(epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--as", "form", type=click.Choice(["ops", "layers"]), default="ops", show_default=True, help="What.")
def command(run: str, folder: Path, form: str) -> None:
    """Write the kernels of RUN to DIR, a package that needs torch and not hotswap.

    ops: a Python package of torch.library ops, for serving engines that take custom ops. layers: a local repository in
    the layout of Hugging Face kernels, which `kernelize` loads. Each kernel runs where it was verified, and the
    original ops elsewhere. (patched/ in the run directory puts the kernels into the whole model.)
    """
    from ..integrator.export_ops import export_layers, export_ops, won_kernels

    won = won_kernels(find_run(run))
    made = export_ops(folder, won) if form == "ops" else export_layers(folder, won)
    click.echo(str(made))
    note(f"{len(won)} kernel(s): {', '.join(w.task.name for w in won)}")
