"""Offer linears that share one input as one matmul of our own that writes every output dense, where it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...extractor.load_task import LoadedTask
from ...extractor.task import Task
from ..attempt import Attempt, Knob
from ..candidate import Candidate
from .kernel_file import next_candidate, rendered
from .merged_linears import mergeable
from .recognise import Linear, linears

_HALVES = ("float16", "bfloat16")
_MOST = 4

CHOICES: dict[str, tuple[Knob, ...]] = {
    "ROWS": (128, 64, 256),
    "COLUMNS": (128, 256, 64),
    "DEEP": (64, 128),
    "WARPS": (8, 4),
    "STAGES": (4, 3, 2),
    "GROUP": (8, 4, 16),
}
_FIRST = ((128, 128, 64, 8, 4, 8), (128, 256, 64, 8, 3, 8), (128, 128, 64, 4, 4, 8), (64, 256, 64, 4, 4, 8))


@dataclass
class MergedMatmul:
    """Proposes settings of one kernel where the reference is two to four linears of one half-precision input."""

    loaded: LoadedTask
    name: str = "merged-matmul"
    _found: list[Linear] | None = field(default=None, init=False, repr=False)
    _looked: bool = field(default=False, init=False, repr=False)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next setting, None where the task is something else, not on a CUDA device, or all were tried."""
        if not task.device.startswith("cuda") or not 2 <= task.outputs <= _MOST:
            return None
        if not self._looked:
            self._found, self._looked = linears(self.loaded.reference, self.loaded.inputs(0)), True
        found = self._found
        if found is None or not mergeable(found, task) or task.cases[0].inputs[found[0].x].dtype not in _HALVES:
            return None
        wrapper = _wrapper(found, task.inputs)

        def emit(knobs: dict[str, Knob]) -> str:
            return rendered("merged_matmul_kernel.py", {k: str(v) for k, v in knobs.items()}, wrapper)

        first: list[dict[str, Knob]] = [dict(zip(CHOICES, setting, strict=True)) for setting in _FIRST]
        return next_candidate(self.name, history, emit, first, CHOICES, rejections=len(first))


def _wrapper(found: Sequence[Linear], names: Sequence[str]) -> str:
    arguments = ", ".join(names)
    weights = ", ".join(names[f.weight] for f in found)
    biases = ", ".join(names[f.bias] for f in found if f.bias is not None)
    sizes = ", ".join(f"{names[f.weight]}.shape[0]" for f in found)
    return f"""def prepare({arguments}):
    return _packed([{weights}], [{biases}])


def kernel({arguments}, *, packed):
    return _linears({names[found[0].x]}, [{sizes}], packed)
"""
