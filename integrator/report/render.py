"""Write a Report in every form it has: the record itself, Markdown, and the page."""

from __future__ import annotations

from pathlib import Path

from ...models.record import write_text
from ..results import Report
from .markdown import markdown as markdown
from .page import html as html
from .terminal import terminal as terminal

RECORD, MARKDOWN, PAGE = "report.json", "report.md", "report.html"


def write(report: Report, folder: Path) -> tuple[Path, ...]:
    """Write report.json, report.md and report.html into `folder`, each atomically, and return their paths.

    The record goes first: the other two can be made again from it.
    """
    paths = (folder / RECORD, folder / MARKDOWN, folder / PAGE)
    report.save(paths[0])
    write_text(paths[1], markdown(report, folder))
    write_text(paths[2], html(report, folder))
    return paths
