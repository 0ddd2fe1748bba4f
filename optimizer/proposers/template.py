"""Offer a region as one loop nest: lower it once, emit C++ for one setting of the knobs after another.

Starts with the settings of `knob_space`; once one was accepted, it varies one knob at a time around the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...extractor.load_task import LoadedTask
from ...extractor.task import Task
from ..attempt import Attempt
from ..candidate import Candidate
from ..codegen.cpp import CppKnobs, emit, knob_space, neighbours
from ..codegen.lower import Unsupported, lower
from ..codegen.program import LoopProgram

# Knobs do not change what is computed: a program rejected twice is wrong, not badly tuned.
REJECTIONS_ALLOWED = 2


@dataclass
class Template:
    """Proposes loop nests for one loaded task. reason: why the region is none, None if it is or nobody asked yet."""

    loaded: LoadedTask
    name: str = "template"
    reason: str | None = None
    _program: LoopProgram | None = field(default=None, repr=False)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next setting nobody tried, None when all were, the region is no loop nest or the device no CPU."""
        own = [a for a in history if a.proposer == self.name]
        program = self._lowered(task)
        if program is None or (not any(a.accepted for a in own) and len(own) >= REJECTIONS_ALLOWED):
            return None
        tried = {a.source_hash for a in own}
        timed = [a for a in own if a.accepted and a.median_us is not None]
        best = min(timed, key=lambda a: a.median_us or 0.0, default=None)
        for knobs in self._settings(program, best):
            candidate = Candidate(
                emit(program, knobs), self.name, best.source_hash if best else None, dict(knobs.as_dict())
            )
            if candidate.hash not in tried:
                return candidate
        return None

    @staticmethod
    def _settings(program: LoopProgram, best: Attempt | None) -> Iterator[CppKnobs]:
        if best is None:
            yield from knob_space(program)
        else:
            yield from neighbours(program, CppKnobs.from_dict(best.knobs))

    def _lowered(self, task: Task) -> LoopProgram | None:
        if self._program is None and self.reason is None:
            if task.device != "cpu":
                self.reason = f"device {task.device}: C++ is for the CPU"
                return None
            try:
                self._program = lower(self.loaded.reference, self.loaded.inputs(0))
            except Unsupported as why:
                self.reason = str(why)
        return self._program
