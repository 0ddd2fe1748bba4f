"""Offer a CPU matmul against a weight through oneDNN with the weight packed once: a library call, and labelled so.

In eager, every linear reorders its weight for the matrix units at each call. Packing it once is worth 10-40% of the
matmul. The packed copy is no view of the parameter: it is static, re-made by the caller when the weight changes. An
activation that follows is applied by oneDNN while the tile is in a cache: it costs no memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...extractor.load_task import LoadedTask
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
    return torch.ops.mkldnn._linear_pointwise({x}, packed, {bias}, "{name}", [], "{algorithm}")
'''


aten = torch.ops.aten

# What oneDNN calls an activation, from the arguments of torch's: its name and algorithm.
_POST_OPS: dict[Any, Callable[..., tuple[str, str]]] = {
    aten.gelu: lambda _x, approximate="none", **kwargs: ("gelu", kwargs.get("approximate", approximate)),
    aten.relu: lambda _x: ("relu", ""),
    aten.silu: lambda _x: ("swish", ""),
    aten.sigmoid: lambda _x: ("sigmoid", ""),
    aten.tanh: lambda _x: ("tanh", ""),
}


class _Pointwise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what is computed element by element, with its arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.pointwise in func.tags:
            self.seen.append((func.overloadpacket, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


class PackedLinear:
    """Proposes one candidate where the inputs are shaped like a linear's; the judge finds out whether it is one."""

    name = "library"

    def __init__(self, loaded: LoadedTask) -> None:
        self._loaded = loaded

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the candidate, None where the task is not shaped like a linear on a CPU or it was offered already."""
        if task.device != "cpu" or not _shaped_like_a_linear(task) or any(a.proposer == self.name for a in history):
            return None
        post_op = self._post_op()
        if post_op is None:
            return None
        x, weight = task.inputs[:2]
        bias = task.inputs[2] if len(task.inputs) == 3 else "None"
        source = _SOURCE.format(
            arguments=", ".join(task.inputs), x=x, weight=weight, bias=bias, name=post_op[0], algorithm=post_op[1]
        )
        return Candidate(source=source, proposer=self.name, parent=None, knobs={})

    def _post_op(self) -> tuple[str, str] | None:
        """Return oneDNN's name of what follows the matmul; None where that is no single activation it has."""
        inputs = self._loaded.inputs(0)
        with _Pointwise() as ran, torch.no_grad():
            self._loaded.reference(*inputs)
        if not ran.seen:
            return "none", ""
        (packet, args, kwargs), *more = ran.seen
        return None if more or packet not in _POST_OPS else _POST_OPS[packet](*args, **kwargs)


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
