"""The history of a task as a log that reads like git's: attempts kept and reverted, each with what it changed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from .console import print_json

if TYPE_CHECKING:
    from ..optimizer.attempt import Attempt
    from ..optimizer.ledger import Ledger

COLORS = {"+": "green", "-": "red", "@": "cyan"}
FILE = "kernel.py"


def outcome(attempt: Attempt) -> str:
    """Return in a few words how an attempt ended."""
    if attempt.verdict is None:
        return "interrupted, not trusted"
    if not attempt.verdict.accepted:
        return f"rejected at {attempt.verdict.stage}: {attempt.verdict.reason}"
    return "kept" if attempt.kept else "accepted, no clear gain: reverted"


def decision(attempt: Attempt) -> str:
    """Return what became of the kernel: "keep", "revert", or "unfinished" where nobody decided."""
    return "unfinished" if attempt.verdict is None else "keep" if attempt.kept else "revert"


def print_log(ledger: Ledger | None, attempts: Sequence[Attempt], *, as_json: bool) -> None:
    """Print the history, newest first: who made it of what, how it ended, and its difference as a patch."""
    bases = _bases(attempts)
    entries = [(attempt, _patch(ledger, attempt, bases[attempt.number])) for attempt in reversed(attempts)]
    if as_json:
        rows = [{"decision": decision(a), "from": bases[a.number], "patch": p, **a.to_dict()} for a, p in entries]
        print_json({"attempts": rows})
    elif not entries:
        click.echo("nothing was tried yet; `hotswap optimize RUN` does")
    for attempt, patch in [] if as_json else entries:
        _print_one(attempt, bases[attempt.number], patch)


def _bases(attempts: Sequence[Attempt]) -> dict[int, str | None]:
    """Return for each attempt the hash it changed: its parent, else the kernel kept last before it, else None.

    A parent that an outside agent made up is none.
    """
    known = {attempt.source_hash for attempt in attempts}
    found: dict[int, str | None] = {}
    kept: str | None = None
    for attempt in attempts:
        found[attempt.number] = attempt.parent if attempt.parent in known else kept
        if attempt.kept:
            kept = attempt.source_hash
    return found


def _print_one(attempt: Attempt, base: str | None, patch: str) -> None:
    click.secho(f"{decision(attempt)} {attempt.source_hash}  attempt {attempt.number}", fg="yellow")
    knobs = " ".join(f"{name}={value}" for name, value in attempt.knobs.items())
    click.echo(f"By:     {attempt.proposer}{'  ' + knobs if knobs else ''}")
    click.echo(f"From:   {base or 'nothing'}{'' if base in (attempt.parent, None) else ', the best then'}")
    click.echo(f"\n    {_summary(attempt)}\n")
    for line in patch.split("\n")[:-1]:
        click.secho(line, fg=None if line.startswith(("---", "+++")) else COLORS.get(line[:1]))
    click.echo()


def _summary(attempt: Attempt) -> str:
    """Return the entry's one line, as a commit's subject; the speed-up where it was timed."""
    won = attempt.verdict.speedup if attempt.verdict else None
    if won is None:
        return outcome(attempt)
    took = f", {attempt.median_us:.1f} us a call" if attempt.median_us is not None else ""
    return f"{outcome(attempt)}: {won.median:.2f}x ({won.low:.2f} to {won.high:.2f}, 99%) the best rival{took}"


def _patch(ledger: Ledger | None, attempt: Attempt, base: str | None) -> str:
    if ledger is None:
        return ""
    old, new = ledger.source(base) if base else "", ledger.source(attempt.source_hash)
    before = f"a/{FILE}" if base else "/dev/null"
    return "".join(_ended(difflib.unified_diff(_lines(old), _lines(new), before, f"b/{FILE}")))


def _lines(text: str) -> list[str]:
    # Not splitlines: a form feed inside a source is no line's end to `patch`.
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _ended(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines of a patch, with what `patch` and git expect where a file has no line break at its end."""
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
