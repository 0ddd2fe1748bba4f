"""Offer softmax and log-softmax of wide rows on a GPU, rows of any width: read from memory once, written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from ...extractor.task import Task
from ..attempt import Knob
from .anchor_template import AnchorTemplate, settings
from .kernel_file import rendered
from .recognise import aten, input_position, results, traced, value, without_widening

# Narrower rows are held in registers whole, which a loop nest does as well.
_WIDE = 8192

_KNOBS = ("WARPS", "HELD", "UNROLL", "REGISTERS", "EARLY")
_HELD = ((16, 8, 1, 64, True), (8, 16, 1, 128, True), (16, 8, 1, 64, False))
_PARTLY = (
    (16, 5, 2, 64, True), (16, 8, 1, 64, True), (16, 6, 1, 64, True), (8, 8, 1, 64, True), (32, 6, 1, 64, True),
    (8, 5, 2, 64, True), (16, 5, 2, 64, False), (32, 0, 2, 0, True), (16, 12, 1, 128, True),
)  # fmt: skip
# As many half-precision values have room in the registers of two programs a multiprocessor.
_HELD_WHOLE = 32768


@dataclass(frozen=True)
class _Softmax:
    """The one softmax a reference computes. x: name of an input of the task. dtype: of the result."""

    x: str
    log: bool
    dtype: str


class WideSoftmax(AnchorTemplate[_Softmax]):
    """Proposes settings of one kernel where the reference is one softmax over a wide last dimension."""

    name: ClassVar[str] = "wide-softmax"
    choices: ClassVar[Mapping[str, Sequence[Knob]]] = {
        "LINE": (128, 16),
        "WARPS": (16, 32, 8),
        "HELD": (5, 6, 4, 8, 0, 2),
        "UNROLL": (2, 1, 4),
        "REGISTERS": (64, 48, 40, 128, 0),
        "EARLY": (True, False),
    }

    def look(self, task: Task) -> _Softmax | None:
        graph = traced(self.loaded.reference, self.loaded.inputs(0)) if task.outputs == 1 else None
        return _softmax(graph, task.inputs) if graph is not None else None

    def first(self, found: _Softmax, task: Task) -> list[dict[str, Knob]]:
        widest = max(case.inputs[task.inputs.index(found.x)].shape[-1] for case in task.cases)
        rows = (*_HELD, *_PARTLY) if widest <= _HELD_WHOLE else (*_PARTLY, *_HELD)
        return [row | {"LINE": 128} for row in settings(_KNOBS, rows)]

    def source(self, found: _Softmax, task: Task, knobs: dict[str, Knob]) -> str:
        wrapper = f"def kernel({', '.join(task.inputs)}):\n    return _softmax({found.x})"
        constants = {k: str(v) for k, v in knobs.items()} | {"OUT": f"torch.{found.dtype}", "LOG": str(found.log)}
        return rendered("wide_softmax_kernel.py", constants, wrapper)


def _softmax(graph: fx.Graph, names: Sequence[str]) -> _Softmax | None:
    """Return the softmax a graph is, None where it is anything else or more, or over narrow rows."""
    (last, *others) = results(graph)
    node: Any = last
    while isinstance(node, fx.Node) and node.target is aten._to_copy.default and value(node).is_floating_point():
        node = node.args[0]
    logs = {aten._softmax.default: False, aten._log_softmax.default: True}
    if others or not isinstance(node, fx.Node) or node.target not in logs:
        return None
    x, dim = node.args[:2]
    position = input_position(without_widening(x))
    wide = value(node).dim() > 0 and dim in (-1, value(node).dim() - 1) and value(node).shape[-1] >= _WIDE
    if position is None or not wide or value(x).shape != value(without_widening(x)).shape:
        return None
    return _Softmax(names[position], logs[node.target], str(value(last).dtype).removeprefix("torch."))
