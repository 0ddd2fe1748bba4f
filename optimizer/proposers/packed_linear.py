"""Offer a CPU matmul against a weight through oneDNN with the weight packed once: a library call, and labelled so.

In eager, every linear reorders its weight for the matrix units at each call. Packing it once is worth 10-40% of the
matmul. The packed copy is no view of the parameter: it is static, re-made by the caller when the weight changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...extractor.task import Task
from ..attempt import Attempt
from ..candidate import Candidate

_SOURCE = '''"""Linear through oneDNN, the weight packed once (a library call)."""

import torch

LABEL = "library call"
STATIC_WEIGHTS = True


def prepare({arguments}):
    rows = {x}.numel() // max({x}.shape[-1], 1)
    return torch.ops.mkldnn._reorder_linear_weight({weight}.detach(), rows)


def kernel({arguments}, *, packed):
    return torch.ops.mkldnn._linear_pointwise({x}, packed, {bias}, "none", [], "")
'''


class PackedLinear:
    """Proposes one candidate where the inputs are shaped like a linear's; the judge finds out whether it is one."""

    name = "library"

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the candidate, None where the task is not shaped like a linear on a CPU or it was offered already."""
        if task.device != "cpu" or not _shaped_like_a_linear(task) or any(a.proposer == self.name for a in history):
            return None
        x, weight = task.inputs[:2]
        bias = task.inputs[2] if len(task.inputs) == 3 else "None"
        source = _SOURCE.format(arguments=", ".join(task.inputs), x=x, weight=weight, bias=bias)
        return Candidate(source=source, proposer=self.name, parent=None, knobs={})


def _shaped_like_a_linear(task: Task) -> bool:
    """Whether every case has inputs x [..., K], weight [N, K] and perhaps bias [N], the last two the model's own."""
    if task.kind != "anchor" or task.outputs != 1 or len(task.inputs) not in (2, 3):
        return False
    for case in task.cases:
        x, weight, *bias = case.inputs
        if any(s.role != "weight" for s in (weight, *bias)) or len(weight.shape) != 2 or not x.shape:
            return False
        if x.shape[-1] != weight.shape[1] or any(b.shape != (weight.shape[0],) for b in bias):
            return False
    return True
