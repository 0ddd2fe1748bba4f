"""Offer linears that share one input as one matmul: their weights are put under one another once. A library call.

Outputs are parts of one buffer (views, rows apart) where the task accepts that, else copies of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ...extractor.task import Task
from ..attempt import Knob
from .anchor_template import AnchorTemplate
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


class MergedLinears(AnchorTemplate[list[Linear]]):
    """Proposes one matmul where the reference is two or more linears of one input against the model's own weights."""

    name: ClassVar[str] = "merged-linears"
    choices: ClassVar[Mapping[str, Sequence[Knob]]] = {}

    def look(self, task: Task) -> list[Linear] | None:
        found = linears(self.loaded.reference, self.loaded.inputs(0)) if task.outputs > 1 else None
        return found if found and mergeable(found, task) else None

    def first(self, found: list[Linear], task: Task) -> list[dict[str, Knob]]:
        return [{"outputs": layout} for layout in _LAYOUTS]

    def source(self, found: list[Linear], task: Task, knobs: dict[str, Knob]) -> str:
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


def mergeable(found: Sequence[Linear], task: Task) -> bool:
    """Whether all share the input, none repeats a weight, all or none have a bias, and all weights are the model's."""
    packed = [f.weight for f in found] + [f.bias for f in found if f.bias is not None]
    return (
        len({f.x for f in found}) == 1
        and len(set(packed)) == len(packed)
        and len({f.bias is None for f in found}) == 1
        and all(case.inputs[i].role == "weight" for case in task.cases for i in packed)
    )
