"""Offer cross entropy over the last dimension on a GPU: the logits are read once, whatever their width."""

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
from .recognise import aten, input_position, results, traced, value, without_views, without_widening

_REDUCTIONS = ("none", "mean", "sum")
# Fewer rows than this leave multiprocessors idle with one program a row; the device's own count is not known here.
_FEW_ROWS = 1024

CHOICES: dict[str, tuple[Knob, ...]] = {
    "WARPS": (4, 8, 16, 2),
    "UNROLL": (4, 2, 8, 1),
    "STAGES": (1, 2, 3),
    "PARTS": (1, 2, 4, 8),
    "EARLY": (False, True),
}


@dataclass(frozen=True)
class _Loss:
    """The one loss a reference computes. logits, target: names of inputs of the task. dtype: of the result."""

    logits: str
    target: str
    reduction: str
    ignore: int
    dtype: str
    rows: int


@dataclass
class CrossEntropy:
    """Proposes settings of one kernel where the reference is a cross entropy of unweighted classes."""

    loaded: LoadedTask
    name: str = "cross-entropy"
    _loss: _Loss | None = field(default=None, init=False, repr=False)
    _looked: bool = field(default=False, init=False, repr=False)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next setting, None where the task is something else, not on a CUDA device, or all were tried."""
        if not task.device.startswith("cuda"):
            return None
        found = self._found(task)
        if found is None:
            return None

        def emit(knobs: dict[str, Knob]) -> str:
            constants = {k: str(v) for k, v in knobs.items()} | {
                "IGNORE": str(found.ignore),
                "REDUCTION": f'"{found.reduction}"',
                "OUT": f"torch.{found.dtype}",
            }
            wrapper = (
                f"def kernel({', '.join(task.inputs)}):\n    return _cross_entropy({found.logits}, {found.target})"
            )
            return rendered("cross_entropy_kernel.py", constants, wrapper)

        return next_candidate(self.name, history, emit, _first(found.rows), CHOICES)

    def _found(self, task: Task) -> _Loss | None:
        if not self._looked:
            graph = traced(self.loaded.reference, self.loaded.inputs(0))
            self._loss, self._looked = _loss(graph, task.inputs) if graph is not None else None, True
        return self._loss


def _first(rows: int) -> list[dict[str, Knob]]:
    parts = 1 if rows >= _FEW_ROWS else 4
    settings = ((4, 2, False), (4, 2, True), (8, 2, True), (8, 1, True), (4, 4, True), (8, 2, False))
    return [{"WARPS": w, "UNROLL": u, "STAGES": 1, "PARTS": parts, "EARLY": early} for w, u, early in settings]


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
