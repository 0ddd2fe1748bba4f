"""Offer softmax and log-softmax of wide rows on a GPU, rows of any width: read from memory once, written once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from ...extractor.load_task import LoadedTask
from ...extractor.task import Task
from ..attempt import Attempt, Knob
from ..candidate import Candidate
from .kernel_file import next_candidate, rendered
from .recognise import aten, input_position, results, traced, value, without_widening

# Narrower rows are held in registers whole, which a loop nest does as well.
_WIDE = 8192

CHOICES: dict[str, tuple[Knob, ...]] = {"WARPS": (32, 16, 8), "UNROLL": (4, 2, 1, 8)}
_FIRST = ((32, 2), (32, 4), (16, 4), (16, 2))


@dataclass(frozen=True)
class _Softmax:
    """The one softmax a reference computes. x: name of an input of the task. dtype: of the result."""

    x: str
    log: bool
    dtype: str


@dataclass
class WideSoftmax:
    """Proposes settings of one kernel where the reference is one softmax over a wide last dimension."""

    loaded: LoadedTask
    name: str = "wide-softmax"
    _found: _Softmax | None = field(default=None, init=False, repr=False)
    _looked: bool = field(default=False, init=False, repr=False)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next setting, None where the task is something else, not on a CUDA device, or all were tried."""
        if not task.device.startswith("cuda") or task.outputs != 1:
            return None
        if not self._looked:
            graph = traced(self.loaded.reference, self.loaded.inputs(0))
            self._found, self._looked = _softmax(graph, task.inputs) if graph is not None else None, True
        found = self._found
        if found is None:
            return None
        wrapper = f"def kernel({', '.join(task.inputs)}):\n    return _softmax({found.x})"

        def emit(knobs: dict[str, Knob]) -> str:
            constants = {k: str(v) for k, v in knobs.items()}
            constants |= {"OUT": f"torch.{found.dtype}", "LOG": str(found.log)}
            return rendered("wide_softmax_kernel.py", constants, wrapper)

        first: list[dict[str, Knob]] = [dict(zip(CHOICES, setting, strict=True)) for setting in _FIRST]
        return next_candidate(self.name, history, emit, first, CHOICES)


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
