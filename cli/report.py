"""`hotswap report RUN`: show a finished or a partial run again, from its record alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..integrator.results import Report


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON instead.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write the page to this file as well.")
@click.option(
    "--markdown", "text", type=click.Path(path_type=Path), help="Write the Markdown form to this file as well."
)
@click.option("--open", "open_page", is_flag=True, help="Make the page again and open it in the browser.")
def command(run: Path, *, as_json: bool, page: Path | None, text: Path | None, open_page: bool) -> None:
    """Show the report of RUN, a run's directory or its report.json."""
    from ..integrator.report.render import PAGE, html, markdown
    from ..models.record import write_text

    record = find_record(run)
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
    if not run.is_dir():
        raise RecordError(
            f"{run}: no such run; expected a run's directory or its report.json (`hotswap ls` lists runs)"
        )
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
