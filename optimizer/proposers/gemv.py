"""Offer a linear of a single row on a GPU, as a decoder's step has them: bound by reading the weight once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ...extractor.task import Task
from ..attempt import Knob
from .anchor_template import AnchorTemplate, settings
from .kernel_file import rendered
from .recognise import Linear, linears

_KNOBS = ("WARPS", "OUTS", "DEEP", "PARTS", "EARLY")
_TALL = (
    (4, 4, 4, 1, False), (4, 8, 4, 1, False), (4, 4, 8, 1, True), (8, 8, 4, 1, True), (4, 4, 4, 1, True),
    (2, 2, 8, 1, True), (1, 1, 8, 1, False), (4, 16, 2, 1, True),
)  # fmt: skip
_SHORT = (
    (4, 1, 4, 1, False), (4, 1, 8, 1, False), (4, 1, 8, 1, True), (8, 1, 8, 1, True), (4, 1, 16, 1, True),
    (2, 1, 8, 1, True), (4, 2, 8, 1, True), (4, 4, 4, 2, True),
)  # fmt: skip
# A warp a row of the weight leaves multiprocessors idle where there are fewer rows than this.
_FEW_OUTPUTS = 4096
_STRIDE = 256  # half-precision elements that one 16-byte load a lane of a warp covers


class Gemv(AnchorTemplate[Linear]):
    """Proposes settings of one kernel where the reference is one linear and every recorded case has one row."""

    name: ClassVar[str] = "gemv"
    choices: ClassVar[Mapping[str, Sequence[Knob]]] = {
        "WARPS": (4, 2, 8, 1),
        "OUTS": (4, 2, 8, 1, 16),
        "DEEP": (4, 8, 2, 16),
        "PARTS": (1, 2, 4),
        "EARLY": (False, True),
    }

    def look(self, task: Task) -> Linear | None:
        found = linears(self.loaded.reference, self.loaded.inputs(0)) if task.outputs == 1 else None
        if not found or any(math.prod(case.inputs[found[0].x].shape[:-1]) != 1 for case in task.cases):
            return None
        return found[0]

    def first(self, found: Linear, task: Task) -> list[dict[str, Knob]]:
        outputs, inner = task.cases[0].inputs[found.weight].shape
        deepest = 1 << (max(1, math.ceil(inner / _STRIDE)) - 1).bit_length()
        rows = _SHORT if outputs < _FEW_OUTPUTS else _TALL
        return [row | {"DEEP": min(int(row["DEEP"]), deepest)} for row in settings(_KNOBS, rows)]

    def source(self, found: Linear, task: Task, knobs: dict[str, Knob]) -> str:
        bias = task.inputs[found.bias] if found.bias is not None else None
        call = f"_linear({task.inputs[found.x]}, {task.inputs[found.weight]}, {bias})"
        wrapper = f"def kernel({', '.join(task.inputs)}):\n    return {call}"
        return rendered("gemv_kernel.py", {k: str(v) for k, v in knobs.items()}, wrapper)
