"""`hotswap config`: every setting, its value and where it came from."""

from __future__ import annotations

from typing import Any

import click

from .console import print_json, results
from .options import SETTINGS, examples, json_option, resolved, settings_options

EXAMPLES = examples(
    "hotswap config",
    "HOTSWAP_BUDGET=2m hotswap config --json",
    "hotswap config --config fast.toml --top 3",
)


@click.command(epilog=EXAMPLES)
@settings_options(*SETTINGS)
@json_option
def command(as_json: bool, **flags: Any) -> None:
    """Print every setting in force with its source.

    A flag wins over the environment (HOTSWAP_BUDGET), that over --config, that over the project's hotswap.toml or
    [tool.hotswap] of pyproject.toml, that over the default.
    """
    from ..models.settings import rows

    found = rows(resolved(flags))
    if as_json:
        print_json({name: {"value": value, "source": source} for name, value, source in found})
        return
    from rich.table import Table

    table = Table("setting", "value", "source", box=None, pad_edge=False)
    for row in found:
        table.add_row(*row)
    results().print(table)
