"""What a terminal shows while a search runs: bars, a table of the tasks, the cost, and what is predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, Group, RenderableType
    from rich.progress import Progress

    from ..optimizer.campaign import Standing


class Screen:
    """Drawn anew several times a second. standing: how the search stands, None while there is none."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.standing: Standing | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.bars
        if self.standing is not None:
            yield standing_view(self.standing)


def standing_view(standing: Standing) -> Group:
    """Return the table of a search: how each task stands, attempts by outcome, and the whole below."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("task", "", "best", "kept", "reverted", "rejected", "left", box=None, pad_edge=False)
    for row in standing.rows:
        share = f"{100 * row.left_us / row.step_us:.1f}%" if row.step_us else "-"
        counts = (row.kept, row.accepted - row.kept, row.tried - row.accepted)
        best = f"{row.best:.2f}x" if row.best is not None else "-"
        table.add_row(row.task, row.state, best, *(str(c) if c else "-" for c in counts), share)
    spent = f"; {standing.spent}" if standing.spent else ""
    return Group(table, Text(f"predicted for the whole model: {standing.predicted:.3f}x{spent}", style="dim"))
