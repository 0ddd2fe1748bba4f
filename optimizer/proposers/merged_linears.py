"""Offer linears that share one input as one matmul: their weights are put under one another once. A library call.

Outputs are parts of one buffer (views, rows apart) where the task accepts that, else copies of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...extractor.load_task import LoadedTask
from ...extractor.task import Task
from ..attempt import Attempt, Knob
from ..candidate import Candidate
from .kernel_file import next_candidate
from .recognise import Linear, linears

# Names that begin with an underscore cannot be those of an input.
_SOURCE = '''"""Linears of one input as one matmul, their weights stacked once (a library call)."""

import torch

LABEL = "library call, outputs are {layout}"
STATIC_WEIGHTS = True


def prepare({arguments}):
    _weight = torch.cat([{weights}]).detach()
    _bias = {bias}
    return _weight, _bias


def kernel({arguments}, *, packed):
    _weight, _bias = packed
    _merged = torch.nn.functional.linear({x}, _weight, _bias)
    _parts = _merged.split([{sizes}], -1)
    return {returned}
'''

_BIAS = "torch.cat([{biases}]).detach()"
_LAYOUTS: dict[Knob, tuple[str, str]] = {
    "views": ("views of one buffer", "tuple(_parts)"),
    "copies": ("copies", "tuple(p.contiguous() for p in _parts)"),
}


@dataclass
class MergedLinears:
    """Proposes one matmul where the reference is two or more linears of one input against the model's own weights."""

    loaded: LoadedTask
    name: str = "merged-linears"
    _found: list[Linear] | None = field(default=None, init=False, repr=False)
    _looked: bool = field(default=False, init=False, repr=False)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next layout of the outputs, None where the task is something else or not on a CUDA device."""
        if not task.device.startswith("cuda") or task.outputs < 2:
            return None
        if not self._looked:
            self._found, self._looked = linears(self.loaded.reference, self.loaded.inputs(0)), True
        found = self._found
        if found is None or not mergeable(found, task):
            return None
        first: list[dict[str, Knob]] = [{"outputs": layout} for layout in _LAYOUTS]
        return next_candidate(self.name, history, lambda knobs: _source(found, task, knobs), first, {})


def mergeable(found: Sequence[Linear], task: Task) -> bool:
    """Whether all share the input, none repeats a weight, all or none have a bias, and all weights are the model's."""
    packed = [f.weight for f in found] + [f.bias for f in found if f.bias is not None]
    return (
        len({f.x for f in found}) == 1
        and len(set(packed)) == len(packed)
        and len({f.bias is None for f in found}) == 1
        and all(case.inputs[i].role == "weight" for case in task.cases for i in packed)
    )


def _source(found: Sequence[Linear], task: Task, knobs: dict[str, Knob]) -> str:
    names = task.inputs
    biases = [names[f.bias] for f in found if f.bias is not None]
    layout, returned = _LAYOUTS[knobs["outputs"]]
    return _SOURCE.format(
        layout=layout,
        arguments=", ".join(names),
        weights=", ".join(names[f.weight] for f in found),
        bias=_BIAS.format(biases=", ".join(biases)) if biases else None,
        x=names[found[0].x],
        sizes=", ".join(f"{names[f.weight]}.shape[0]" for f in found),
        returned=returned,
    )
