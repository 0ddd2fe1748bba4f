"""Make a candidate of a kernel file of this folder: set its knobs, add `def kernel(...)`, choose the next setting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources

from ..attempt import Attempt, Knob
from ..candidate import Candidate
from .own_attempts import REJECTIONS_ALLOWED, own_attempts


def rendered(file: str, constants: Mapping[str, str], wrapper: str) -> str:
    """Return the text of kernel file `file` with the lines `NAME = ...` set to `constants`, and `wrapper` at its end.

    What it imports from a kernel file beside it comes as that file's text: a candidate stands alone. Raise KeyError for
    a constant the file does not have exactly once: it would silently stay as it was.
    """
    text = _text(file)
    for name, value in constants.items():
        text, count = re.subn(rf"(?m)^{name} = .*$", lambda _, line=f"{name} = {value}": line, text)  # type: ignore[misc]
        if count != 1:
            raise KeyError(f"{file}: {count} lines set {name}, expected one")
    return f"{text}\n\n{wrapper.strip()}\n"


def _text(file: str) -> str:
    text = resources.files(__package__).joinpath(file).read_text(encoding="utf-8")
    text = re.sub(r"(?m)^# (mypy|ruff): .*\n", "", text)  # for this folder's checkers
    return re.sub(r"(?m)^from \.(\w+) import .*\n", lambda found: _without_docstring(_text(f"{found[1]}.py")), text)


def _without_docstring(text: str) -> str:
    return text.split('"""', 2)[2].lstrip()


def next_candidate(
    name: str,
    history: Sequence[Attempt],
    emit: Callable[[dict[str, Knob]], str],
    first: Iterable[dict[str, Knob]],
    choices: Mapping[str, Sequence[Knob]],
    *,
    rejections: int = REJECTIONS_ALLOWED,
) -> Candidate | None:
    """Return the next untried setting: `first` in order, then those one knob away from the best; None at the end.

    emit: the source of a setting. choices: what each knob may be turned to. The parent of what is made from the best
    attempt is that attempt. rejections: how many attempts may be rejected before one is accepted.
    """
    own = own_attempts(name, history, rejections)
    if own is None:
        return None
    best = own.best
    around = [] if best is None else [best.knobs | {k: v} for k, values in choices.items() for v in values]
    for knobs, parent in [*((k, None) for k in first), *((k, best) for k in around)]:
        candidate = Candidate(emit(knobs), name, parent.source_hash if parent else None, dict(knobs))
        if candidate.hash not in own.tried:
            return candidate
    return None
