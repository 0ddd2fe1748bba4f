"""Cheap filters before a GPU is asked: candidates that spill registers or need more shared memory than there is."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ...extractor.task import Task
from ...models.record import Record
from .chain import Chain
from .language import TRITON
from .triton_compile import Build, Compilers, Target, Tensor


class Screen:
    """Compiles candidates of one task ahead of time, several at once, and remembers what became of each."""

    def __init__(self, task: Task, target: Target, compilers: Compilers | None = None) -> None:
        """compilers: the processes to use; those all tasks share unless given."""
        self.target = target
        self._cases = [[Tensor(i.dtype, i.shape, i.stride) for i in case.inputs] for case in task.cases]
        self._compilers = compilers or _shared()
        self._builds: dict[str, Build] = {}

    def builds(self, sources: Sequence[str]) -> list[Build]:
        """Return what became of each source; what was compiled before is not compiled again."""
        fresh = [s for s in dict.fromkeys(sources) if s not in self._builds]
        self._builds.update(zip(fresh, self._compilers.builds(fresh, self._cases, self.target), strict=True))
        return [self._builds[s] for s in sources]


@dataclass(frozen=True)
class Checked(Record):
    """One setting of a task's template before any GPU: what it compiled to, and why it would not be tried, if so."""

    task: str
    knobs: dict[str, str | int | bool]
    build: Build
    trouble: str | None


def check(task: Task, chain: Chain, screen: Screen) -> list[Checked]:
    """Return what every setting of the first guesses compiles to, for the shapes of a task."""
    offers = list(TRITON.sources(chain))
    builds = screen.builds([source for _, source in offers])
    return [
        Checked(task.name, dict(knobs.as_dict()), build, build.trouble(screen.target))
        for (knobs, _), build in zip(offers, builds, strict=True)
    ]


@cache
def _shared() -> Compilers:
    compilers = Compilers()
    atexit.register(compilers.close)
    return compilers
