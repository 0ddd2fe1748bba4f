"""Offer a linear of a single row on a GPU, as a decoder's step has them: bound by reading the weight once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...extractor.load_task import LoadedTask
from ...extractor.task import Task
from ..attempt import Attempt, Knob
from ..candidate import Candidate
from .kernel_file import next_candidate, rendered
from .recognise import Linear, linears

CHOICES: dict[str, tuple[Knob, ...]] = {
    "WARPS": (4, 2, 8, 1),
    "OUTS": (4, 2, 8, 1, 16),
    "TILES": (2, 1, 4),
    "PARTS": (1, 2, 4, 8),
}
_FIRST = ((4, 1, 4, 1), (4, 2, 2, 1), (8, 1, 2, 1), (4, 1, 4, 4), (4, 4, 2, 1), (2, 2, 2, 1))


@dataclass
class Gemv:
    """Proposes settings of one kernel where the reference is one linear and every recorded case has one row."""

    loaded: LoadedTask
    name: str = "gemv"
    _found: list[Linear] | None = field(default=None, init=False, repr=False)
    _looked: bool = field(default=False, init=False, repr=False)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next setting, None where the task is something else, not on a CUDA device, or all were tried."""
        if not task.device.startswith("cuda") or task.outputs != 1:
            return None
        if not self._looked:
            self._found, self._looked = linears(self.loaded.reference, self.loaded.inputs(0)), True
        if not self._found or not _one_row(self._found[0], task):
            return None
        (found,) = self._found
        bias = task.inputs[found.bias] if found.bias is not None else None
        call = f"_linear({task.inputs[found.x]}, {task.inputs[found.weight]}, {bias})"
        wrapper = f"def kernel({', '.join(task.inputs)}):\n    return {call}"

        def emit(knobs: dict[str, Knob]) -> str:
            return rendered("gemv_kernel.py", {k: str(v) for k, v in knobs.items()}, wrapper)

        first: list[dict[str, Knob]] = [dict(zip(CHOICES, setting, strict=True)) for setting in _FIRST]
        return next_candidate(self.name, history, emit, first, CHOICES)


def _one_row(found: Linear, task: Task) -> bool:
    shapes = [case.inputs[found.x].shape for case in task.cases]
    return all(math.prod(shape[:-1]) == 1 for shape in shapes)
