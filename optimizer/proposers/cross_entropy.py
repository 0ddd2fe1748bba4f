"""Offer cross entropy over the last dimension on a GPU: the logits are read once, whatever their width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from ...extractor.task import Task
from ..attempt import Knob
from .anchor_template import AnchorTemplate, settings
from .kernel_file import rendered
from .recognise import aten, input_position, results, traced, value, without_views, without_widening

_REDUCTIONS = ("none", "mean", "sum")
# Fewer rows than this leave multiprocessors idle with one program a row; the device's own count is not known here.
_FEW_ROWS = 1024

_KNOBS = ("WARPS", "UNROLL", "EARLY")
_FIRST = (
    (4, 2, True), (8, 2, False), (8, 2, True), (16, 2, True), (4, 4, True), (8, 4, True), (8, 1, True), (4, 2, False),
)  # fmt: skip


@dataclass(frozen=True)
class _Loss:
    """The one loss a reference computes. logits, target: names of inputs of the task. dtype: of the result."""

    logits: str
    target: str
    reduction: str
    ignore: int
    dtype: str
    rows: int


class CrossEntropy(AnchorTemplate[_Loss]):
    """Proposes settings of one kernel where the reference is a cross entropy of unweighted classes."""

    name: ClassVar[str] = "cross-entropy"
    choices: ClassVar[Mapping[str, Sequence[Knob]]] = {
        "WARPS": (4, 8, 16, 2),
        "UNROLL": (2, 4, 1, 8),
        "PARTS": (1, 2, 4, 8),
        "EARLY": (True, False),
    }

    def look(self, task: Task) -> _Loss | None:
        graph = traced(self.loaded.reference, self.loaded.inputs(0))
        return _loss(graph, task.inputs) if graph is not None else None

    def first(self, found: _Loss, task: Task) -> list[dict[str, Knob]]:
        parts = 1 if found.rows >= _FEW_ROWS else 4
        return [row | {"PARTS": parts} for row in settings(_KNOBS, _FIRST)]

    def source(self, found: _Loss, task: Task, knobs: dict[str, Knob]) -> str:
        constants = {k: str(v) for k, v in knobs.items()} | {
            "IGNORE": str(found.ignore),
            "REDUCTION": f'"{found.reduction}"',
            "OUT": f"torch.{found.dtype}",
        }
        wrapper = f"def kernel({', '.join(task.inputs)}):\n    return _cross_entropy({found.logits}, {found.target})"
        return rendered("cross_entropy_kernel.py", constants, wrapper)


def _loss(graph: fx.Graph, names: Sequence[str]) -> _Loss | None:
    """Return the loss a graph is, None where it is anything else or more."""
    returned = results(graph)
    if len(returned) != 1:
        return None
    node = returned[0]
    picks_first = isinstance(node, fx.Node) and getattr(node.target, "__name__", "") == "getitem" and node.args[1] == 0
    nll: Any = node.args[0] if picks_first else node
    if not isinstance(nll, fx.Node) or nll.target is not aten.nll_loss_forward.default:
        return None
    given: Any = nll.args
    log_probability, target, weight, reduction, ignore = given
    softmax = without_views(log_probability)
    if weight is not None or not isinstance(softmax, fx.Node) or softmax.target is not aten._log_softmax.default:
        return None
    x, dim = softmax.args[:2]
    if dim not in (-1, value(softmax).dim() - 1) or value(log_probability).dim() != 2:
        return None
    logits, labels = input_position(without_widening(x)), input_position(_flat(target))
    if logits is None or labels is None:
        return None
    loss = _Loss(
        names[logits],
        names[labels],
        _REDUCTIONS[int(reduction)],
        int(ignore),
        str(value(node).dtype).removeprefix("torch."),
        value(log_probability).shape[0],
    )
    # A loss by row comes back in the shape of the flat rows; another shape would need a view behind it.
    return loss if value(x).shape[-1] == value(log_probability).shape[-1] else None


def _flat(target: Any) -> Any:
    while isinstance(target, fx.Node) and target.target in (aten.view.default, aten._unsafe_view.default):
        target = target.args[0]
    return target
