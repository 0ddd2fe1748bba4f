"""Turn the constants of somebody's kernel: its top-level numbers are searched as a template's knobs are."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence

from ...extractor.task import Task
from ..attempt import Attempt, Knob
from ..candidate import Candidate

_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
# Written by the contract, not sizes to turn.
_NOT_KNOBS = frozenset({"STATIC_WEIGHTS", "CONSTRAINTS", "LABEL"})
_MOST = 1 << 20


class Lifted:
    """Offers the best kernel of other proposers with one top-level whole number halved or doubled.

    own_knobs: proposers that search their own constants already. source: a candidate's text by its hash.
    """

    name = "lifted"

    def __init__(self, source: Callable[[str], str], own_knobs: Sequence[str] = ("template",)) -> None:
        self._source, self._own_knobs = source, frozenset(own_knobs)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next setting nobody tried around the best kernel, None where it has no constants left to turn."""
        best = min((a for a in history if self._has_constants(a)), key=lambda a: a.median_us or 0.0, default=None)
        if best is None:
            return None
        source, tried = self._source(best.source_hash), {a.source_hash for a in history}
        for name, old, new in _turned(source):
            knobs: dict[str, Knob] = {name: new}
            candidate = Candidate(_with(source, name, old, new), self.name, best.source_hash, knobs)
            if candidate.hash not in tried:
                return candidate
        return None

    def _has_constants(self, attempt: Attempt) -> bool:
        return attempt.accepted and attempt.median_us is not None and attempt.proposer not in self._own_knobs


def constants(source: str) -> dict[str, int]:
    """Return the whole numbers a file binds at its top level to names in capitals."""
    found = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            continue
        name, value = node.targets[0].id, node.value
        number = value.value if isinstance(value, ast.Constant) else None
        if _NAME.fullmatch(name) and name not in _NOT_KNOBS and type(number) is int and 1 <= number <= _MOST:
            found[name] = number
    return found


def _turned(source: str) -> Iterator[tuple[str, int, int]]:
    for name, value in constants(source).items():
        yield name, value, value * 2
        if value > 1:
            yield name, value, value // 2


def _with(source: str, name: str, old: int, new: int) -> str:
    """Return the file with one constant changed where it is bound, all else as it was."""
    return re.sub(rf"^({name}\s*=\s*){old}\b", rf"\g<1>{new}", source, count=1, flags=re.MULTILINE)
