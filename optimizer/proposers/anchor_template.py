"""What every template of an anchor has in common: look at the reference once, then offer one setting after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from ...extractor.load_task import LoadedTask
from ...extractor.task import Task
from ..attempt import Attempt, Knob
from ..candidate import Candidate
from .kernel_file import next_candidate
from .own_attempts import REJECTIONS_ALLOWED

Found = TypeVar("Found")


class AnchorTemplate(ABC, Generic[Found]):
    """Proposes for a task on its device whose reference it recognises.

    device: the type of device, as torch names it. choices: what each knob may be turned to around the best. rejections:
    how many attempts may be rejected before one is accepted. Subclasses say what they recognise, which settings come
    first and what the source of a setting is.
    """

    name: ClassVar[str]
    device: ClassVar[str] = "cuda"
    choices: ClassVar[Mapping[str, Sequence[Knob]]]
    rejections: ClassVar[int] = REJECTIONS_ALLOWED

    def __init__(self, loaded: LoadedTask) -> None:
        self.loaded = loaded
        self._looked: list[Found | None] = []

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next setting, None where the task is something else, on another device, or all were tried."""
        if task.device.partition(":")[0] != self.device:
            return None
        if not self._looked:
            self._looked.append(self.look(task))
        (found,) = self._looked
        if found is None:
            return None
        return next_candidate(
            self.name,
            history,
            lambda knobs: self.source(found, task, knobs),
            self.first(found, task),
            self.around(found, task),
            rejections=self.rejections,
        )

    @abstractmethod
    def look(self, task: Task) -> Found | None:
        """Return what the reference is, None where it is nothing for this template."""

    @abstractmethod
    def first(self, found: Found, task: Task) -> Iterable[dict[str, Knob]]:
        """Return the settings to begin with, the most promising first."""

    def around(self, found: Found, task: Task) -> Mapping[str, Sequence[Knob]]:
        """Return what each knob may be turned to around the best: `choices`, less what is not worth trying here."""
        return self.choices

    @abstractmethod
    def source(self, found: Found, task: Task, knobs: dict[str, Knob]) -> str:
        """Return the candidate file of one setting."""


def settings(names: Iterable[str], rows: Iterable[Sequence[Knob]]) -> list[dict[str, Knob]]:
    """Return rows of a table of settings as dicts; every row has a value for every name."""
    return [dict(zip(names, row, strict=True)) for row in rows]
