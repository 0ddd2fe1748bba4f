"""Offer cross entropy over the last dimension on a GPU: the logits are read once, whatever their width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ...extractor.task import Task
from ..attempt import Knob
from .anchor_template import AnchorTemplate, settings
from .kernel_file import rendered
from .recognise import Loss, input_position, loss

# Fewer rows than this leave multiprocessors idle with one program a row; the device's own count is not known here.
_FEW_ROWS = 1024

_KNOBS = ("WARPS", "UNROLL", "EARLY")
_FIRST = (
    (4, 2, True), (8, 2, False), (8, 2, True), (16, 2, True), (4, 4, True), (8, 4, True), (8, 1, True), (4, 2, False),
)  # fmt: skip


class CrossEntropy(AnchorTemplate[Loss]):
    """Proposes settings of one kernel where the reference is a cross entropy of unweighted classes."""

    name: ClassVar[str] = "cross-entropy"
    choices: ClassVar[Mapping[str, Sequence[Knob]]] = {
        "LINE": (128, 16),
        "WARPS": (4, 8, 16, 2),
        "UNROLL": (2, 4, 1, 8),
        "PARTS": (1, 2, 4, 8),
        "EARLY": (True, False),
    }

    def look(self, task: Task) -> Loss | None:
        found = loss(self.loaded.reference, self.loaded.inputs(0))
        return found if found and input_position(found.logits) is not None else None

    def first(self, found: Loss, task: Task) -> list[dict[str, Knob]]:
        parts = 1 if found.rows >= _FEW_ROWS else 4
        return [row | {"PARTS": parts, "LINE": 128} for row in settings(_KNOBS, _FIRST)]

    def source(self, found: Loss, task: Task, knobs: dict[str, Knob]) -> str:
        constants = {k: str(v) for k, v in knobs.items()} | loss_constants(found)
        given = f"{task.inputs[input_position(found.logits) or 0]}, {task.inputs[found.target]}"
        wrapper = f"def kernel({', '.join(task.inputs)}):\n    return _cross_entropy({given})"
        return rendered("cross_entropy_kernel.py", constants, wrapper)


def loss_constants(found: Loss) -> dict[str, str]:
    """Return what a kernel file of a loss is told of it."""
    return {"IGNORE": str(found.ignore), "REDUCTION": f'"{found.reduction}"', "OUT": f"torch.{found.dtype}"}
