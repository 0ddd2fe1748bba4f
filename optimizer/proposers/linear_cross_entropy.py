"""Offer the cross entropy of a linear's outputs on a GPU without the outputs: what is not returned is not written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...extractor.task import Task
from ..attempt import Knob
from .anchor_template import AnchorTemplate, settings
from .cross_entropy import loss_constants
from .kernel_file import rendered
from .recognise import Linear, Loss, linear, loss

_HALVES = ("float16", "bfloat16")

_KNOBS = ("ROWS", "COLUMNS", "DEEP", "WARPS", "STAGES", "GROUP", "FLAT", "EACH")
_FIRST = (
    (128, 256, 64, 8, 4, 8, True, 1), (128, 128, 64, 4, 3, 8, True, 2), (128, 256, 64, 8, 3, 8, False, 1),
    (64, 128, 64, 4, 4, 8, False, 2),
)  # fmt: skip


@dataclass(frozen=True)
class _Head:
    """A linear and the loss of its outputs."""

    linear: Linear
    loss: Loss


class LinearCrossEntropy(AnchorTemplate[_Head]):
    """Proposes settings of one kernel where the reference is a cross entropy of a linear in half precision."""

    name: ClassVar[str] = "linear-cross-entropy"
    choices: ClassVar[Mapping[str, Sequence[Knob]]] = {
        "ROWS": (128, 64, 256),
        "COLUMNS": (256, 128),
        "DEEP": (64, 128),
        "WARPS": (8, 4),
        "STAGES": (4, 3, 2),
        "GROUP": (8, 4, 16),
        "FLAT": (True, False),
        "EACH": (1, 2),
    }
    rejections: ClassVar[int] = len(_FIRST)  # a tile too large for the device is no mistake of the rest

    def look(self, task: Task) -> _Head | None:
        found = loss(self.loaded.reference, self.loaded.inputs(0))
        head = linear(found.logits) if found else None
        if found is None or head is None:
            return None
        factors = [case.inputs[i] for case in task.cases for i in (head.x, head.weight)]
        return _Head(head, found) if all(f.dtype in _HALVES for f in factors) else None

    def first(self, found: _Head, task: Task) -> list[dict[str, Knob]]:
        return settings(_KNOBS, _FIRST)

    def source(self, found: _Head, task: Task, knobs: dict[str, Knob]) -> str:
        names, head = task.inputs, found.linear
        bias = names[head.bias] if head.bias is not None else None
        given = f"{names[head.x]}, {names[head.weight]}, {bias}, {names[found.loss.target]}"
        wrapper = f"def kernel({', '.join(names)}):\n    return _linear_cross_entropy({given})"
        constants = {k: str(v) for k, v in knobs.items()} | loss_constants(found.loss)
        return rendered("linear_cross_entropy_kernel.py", constants, wrapper)
