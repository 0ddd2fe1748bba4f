"""Read a model's reply, strictly: a whole candidate file, or a diff against the file it was shown."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

_FENCE = re.compile(r"^```[ \t]*([\w+-]*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")
WHOLE = ("python", "py")
DIFF = ("diff", "patch")
MOST_BYTES = 256 << 10


class MalformedError(Exception):
    """The reply is no candidate; the message tells the model what was wrong."""


def candidate_source(text: str, parent: str | None, *, cut: bool = False) -> str:
    """Return the candidate file a reply holds. parent: the file a diff is against, None where none was shown.

    Raises MalformedError unless the reply has one fenced block, `python` (a whole file) or `diff`, that gives a file
    which parses and defines `kernel` at its top level.
    """
    blocks = _FENCE.findall(text)
    if not blocks:
        if cut:
            raise MalformedError("the reply was cut off before its code block ended; answer with less text")
        raise MalformedError("the reply has no closed code block; put the file between ```python and ```")
    wanted = [(kind, body) for kind, body in blocks if kind in (*WHOLE, *DIFF)]
    if len(wanted) != 1:
        kinds = ", ".join(kind or "unnamed" for kind, _ in blocks)
        raise MalformedError(f"expected exactly one ```python or ```diff block, got {len(wanted)} (blocks: {kinds})")
    kind, body = wanted[0]
    source = body if kind in WHOLE else patched(parent, body)
    _check(source)
    return source


def _check(source: str) -> None:
    size = len(source.encode(errors="replace"))
    if size > MOST_BYTES:
        raise MalformedError(f"the file has {size} bytes, at most {MOST_BYTES} are taken")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MalformedError(f"the file does not parse: {error}") from None
    if not any(isinstance(n, ast.FunctionDef) and n.name == "kernel" for n in tree.body):
        raise MalformedError("the file defines no function `kernel` at its top level")


def patched(parent: str | None, diff: str) -> str:
    """Return `parent` with a unified diff applied; raise MalformedError where a hunk does not fit exactly one place."""
    if parent is None:
        raise MalformedError("a diff needs a file to be against, and none was shown; give the whole file")
    lines = parent.splitlines()
    start = 0
    hunks = _hunks(diff)
    if not hunks:
        raise MalformedError("the diff has no hunk; a hunk begins with a line like @@ -10,4 +10,5 @@")
    for number, (near, old, new) in enumerate(hunks, start=1):
        at = _place(lines, old, near - 1, start)
        if at is None:
            raise MalformedError(f"hunk {number} of the diff: its old lines are not in the file, or in several places")
        lines[at : at + len(old)] = new
        start = at + len(new)
    return "\n".join(lines) + "\n"


def _hunks(diff: str) -> list[tuple[int, list[str], list[str]]]:
    """Return (line, old lines, new lines) of each hunk."""
    hunks: list[tuple[int, list[str], list[str]]] = []
    for line in diff.splitlines():
        if match := _HUNK.match(line):
            hunks.append((int(match[1]), [], []))
            continue
        if not hunks:
            if line.startswith(("---", "+++", "diff ", "index ")) or not line.strip():
                continue
            raise MalformedError(f"the diff begins with {line[:40]!r}; expected ---, +++ or @@")
        _, old, new = hunks[-1]
        mark, rest = line[:1], line[1:]
        if mark not in ("+", "-", " ", "", "\\"):
            raise MalformedError(f"a line of the diff begins with {mark!r}; expected a blank, + or -")
        if mark in ("-", " ", ""):
            old.append(rest)
        if mark in ("+", " ", ""):
            new.append(rest)
    return hunks


def _place(lines: Sequence[str], old: Sequence[str], near: int, start: int) -> int | None:
    """Return where the old lines stand at or after `start`: where the header says, else the only place there is."""
    if not old:
        return near + 1 if start <= near + 1 <= len(lines) else None
    fits = [i for i in range(start, len(lines) - len(old) + 1) if list(lines[i : i + len(old)]) == list(old)]
    return near if near in fits else fits[0] if len(fits) == 1 else None
