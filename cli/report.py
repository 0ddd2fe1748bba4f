"""`hotswap report RUN`: show a finished or a partial run again, from its record alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import examples
from .places import find_run

if TYPE_CHECKING:
    from ..integrator.results import Report


EXAMPLES = examples(
    "hotswap report last",
    "hotswap report runs/20261130-101500-minilm --html page.html",
    "hotswap report last --json",
)


@click.command("report", epilog=EXAMPLES)
@click.argument("run", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON instead.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write the page to this file as well.")
@click.option(
    "--markdown", "text", type=click.Path(path_type=Path), help="Write the Markdown form to this file as well."
)
@click.option("--open", "open_page", is_flag=True, help="Make the page again and open it in the browser.")
def command(run: str, *, as_json: bool, page: Path | None, text: Path | None, open_page: bool) -> None:
    """Show the report of RUN: a run directory, its report.json, a name under runs/, or `last`."""
    from ..integrator.report.render import PAGE, html, markdown
    from ..models.record import write_text

    record = find_record(Path(run) if Path(run).is_file() else find_run(run))
    report = load(record)
    if page is None and open_page:
        page = record.parent / PAGE
    if page is not None:
        write_text(page, html(report, record.parent))
        click.echo(f"wrote {page}", err=True)
    if text is not None:
        write_text(text, markdown(report, record.parent))
        click.echo(f"wrote {text}", err=True)
    if as_json:
        click.echo(record.read_text(encoding="utf-8"), nl=False)
    else:
        show(report, record.parent)
    if open_page and page is not None:
        click.launch(page.resolve().as_uri())


def find_record(run: Path) -> Path:
    """Return the report.json that RUN means; raise RecordError where there is none."""
    from ..integrator.report.render import RECORD
    from ..models.errors import RecordError

    if run.is_file():
        return run
    if not (run / RECORD).is_file():
        raise RecordError(
            f"{run}: holds no {RECORD}, so no stage has reported yet; `hotswap resume {run}` continues it"
        )
    return run / RECORD


def load(record: Path) -> Report:
    from ..integrator.results import Report

    return Report.load(record)


def show(report: Report, folder: Path) -> None:
    from rich.console import Console

    from ..integrator.report.render import terminal

    terminal(report, Console(), folder)
