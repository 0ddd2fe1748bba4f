"""`hotswap env`: versions and hardware, to paste into an issue."""

from __future__ import annotations

import click

from .console import print_json, results
from .options import examples, json_option


@click.command(epilog=examples("hotswap env", "hotswap env --json > env.json"))
@json_option
def command(as_json: bool) -> None:
    """Print versions, CPU, device, compiler and threads: what a figure of ours depends on."""
    from ..models.environment import environment

    found = environment()
    if as_json:
        print_json(found)
        return
    width = max(map(len, found))
    for name, value in found.items():
        results().print(f"{name:<{width}}  {value}", markup=False, soft_wrap=True)
