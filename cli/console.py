"""Where the commands speak: results on stdout, talk and progress on stderr."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from ..optimizer.campaign import Standing
    from .live import Screen

PLAIN_EVERY_S = 5.0
WIDTH_UNKNOWN = 200


@cache
def results() -> Console:
    """Return the console for what the user asked for; where its width is unknown (a pipe, a file), nothing is cut."""
    from rich.console import Console

    return Console(highlight=False, width=shutil.get_terminal_size(fallback=(WIDTH_UNKNOWN, 24)).columns)


@cache
def talk() -> Console:
    """Return the console for everything else: progress, notes, errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(plain: Any) -> None:
    """Print one JSON document to stdout, and nothing else."""
    sys.stdout.write(json.dumps(plain, indent=1, allow_nan=False) + "\n")


def say_error(message: str) -> None:
    """Print one error line to stderr, red on a terminal; a message's own line breaks become spaces."""
    from rich.text import Text

    talk().print(Text.assemble(("hotswap: ", "bold red"), (" ".join(message.split()), "red")), soft_wrap=True)


def note(message: str) -> None:
    """Print one line of talk to stderr."""
    from rich.text import Text

    talk().print(Text(message, style="dim"), soft_wrap=True)


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Bars]:
    """Yield a listener for `models.progress`: bars with an estimate on a terminal, else a plain line now and then."""
    if quiet or not talk().is_terminal:
        yield Bars(None, quiet=quiet)
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    from rich.live import Live

    from .live import Screen

    bars = Progress(*columns, console=talk(), auto_refresh=False)
    screen = Screen(bars)
    with Live(screen, console=talk(), refresh_per_second=4):
        yield Bars(bars, quiet=False, screen=screen)


class Bars:
    """One bar for each name it hears; off a terminal, a line when work starts, ends, and every few seconds."""

    def __init__(self, live: Progress | None, *, quiet: bool, screen: Screen | None = None) -> None:
        self._live = live
        self._screen = screen
        self._quiet = quiet
        self._bars: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._spoke: dict[str, float] = {}

    def __call__(self, what: str, done: float, total: float, note: str = "") -> None:
        if self._live is not None:
            if what not in self._bars:
                self._bars[what] = self._live.add_task(what, total=total, note="")
            self._live.update(self._bars[what], completed=done, total=total)
            if note:
                self._live.update(self._bars[what], note=note)
        elif not self._quiet:
            self._line(what, done, total, note)

    def watch(self, standing: Standing) -> None:
        """Show how the search stands: a table on a terminal, nothing elsewhere, where the lines say enough."""
        if self._screen is not None:
            self._screen.standing = standing

    def _line(self, what: str, done: float, total: float, remark: str) -> None:
        now = time.monotonic()
        first = what not in self._started
        if first:
            self._started[what] = now
        over = done >= total
        if not first and not over and now - self._spoke[what] < PLAIN_EVERY_S:
            return
        self._spoke[what] = now
        passed = now - self._started[what]
        if over:
            left = f"done in {passed:.1f} s"
        elif done and passed >= 1.0:
            left = f"{100 * done / total:.0f}%, {passed * (total - done) / done:.0f} s left"
        else:
            left = f"{100 * done / total:.0f}%" if done else "begun"
        note(f"{what}: {left}" + (f" ({remark})" if remark else ""))
