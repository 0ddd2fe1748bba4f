"""Offer a linear whose width is odd with its weight padded to a width the matrix units like. A library call.

Against 50257 outputs cuBLAS took 6716 us on an H200, against 50304 1012 us: rows that start off a 16-byte border cannot
be stored in whole vectors. The result is a view of the padded rows where the task accepts that, else it is copied out,
at once or a few rows at a time so that the padded ones are still in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ...extractor.task import Task
from ..attempt import Knob
from .anchor_template import AnchorTemplate
from .recognise import Linear, linears

# 16 bytes of half precision: rows of fewer are what this is for.
_VECTOR = 8

# Names that begin with an underscore cannot be those of an input.
_SOURCE = '''"""A linear against a weight padded once to a whole number of {pad} outputs (a library call)."""

import torch

LABEL = "library call, the output is {layout}"
STATIC_WEIGHTS = True
PAD = {pad}
ROWS = {rows}


def prepare({arguments}):
    _more = -{weight}.shape[0] % PAD
    _weight = torch.nn.functional.pad({weight}.detach(), (0, 0, 0, _more))
    _bias = {bias}
    return _weight, _bias


def kernel({arguments}, *, packed):
    _weight, _bias = packed
    _width = {weight}.shape[0]
{body}
'''

_VIEW = "    return torch.nn.functional.linear({x}, _weight, _bias)[..., :_width]"
_COPY = _VIEW + ".contiguous()"
_CHUNKS = """    _flat = {x}.reshape(-1, {x}.shape[-1])
    _out = torch.empty(_flat.shape[0], _width, dtype={x}.dtype, device={x}.device)
    for _first in range(0, _flat.shape[0], ROWS):
        _rows = _flat[_first : _first + ROWS]
        _out[_first : _first + ROWS] = torch.nn.functional.linear(_rows, _weight, _bias)[:, :_width]
    return _out.view(*{x}.shape[:-1], _width)"""
_LAYOUTS: dict[Knob, tuple[str, str]] = {
    "view": ("a view of padded rows", _VIEW),
    "copy": ("contiguous", _COPY),
    "chunks": ("contiguous", _CHUNKS),
}


class PaddedLinear(AnchorTemplate[Linear]):
    """Proposes padded weights where the reference is one linear of half-precision rows that are no whole vectors."""

    name: ClassVar[str] = "padded-linear"
    choices: ClassVar[Mapping[str, Sequence[Knob]]] = {"pad": (64, 8, 128, 256), "rows": (1024, 512, 2048)}
    rejections: ClassVar[int] = len(_LAYOUTS)  # not every layout is one that the task accepts

    def look(self, task: Task) -> Linear | None:
        found = linears(self.loaded.reference, self.loaded.inputs(0)) if task.outputs == 1 else None
        return found[0] if found and _odd(found[0], task) else None

    def first(self, found: Linear, task: Task) -> list[dict[str, Knob]]:
        return [{"outputs": layout, "pad": 64, "rows": 1024} for layout in _LAYOUTS]

    def source(self, found: Linear, task: Task, knobs: dict[str, Knob]) -> str:
        names = task.inputs
        bias = (
            f"torch.nn.functional.pad({names[found.bias]}.detach(), (0, _more))" if found.bias is not None else "None"
        )
        layout, body = _LAYOUTS[knobs["outputs"]]
        return _SOURCE.format(
            pad=knobs["pad"],
            rows=knobs["rows"] if knobs["outputs"] == "chunks" else 0,
            layout=layout,
            arguments=", ".join(names),
            weight=names[found.weight],
            bias=bias,
            body=body.format(x=names[found.x]),
        )


def _odd(found: Linear, task: Task) -> bool:
    packed = [i for i in (found.weight, found.bias) if i is not None]
    halves = ("float16", "bfloat16")
    return all(
        case.inputs[found.weight].shape[0] % _VECTOR != 0
        and case.inputs[found.weight].dtype in halves
        and all(case.inputs[i].role == "weight" for i in packed)
        for case in task.cases
    )
