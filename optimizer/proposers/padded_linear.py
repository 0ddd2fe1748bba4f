"""Offer a linear whose width is odd with its weight padded to a width the matrix units like. A library call.

Against 50257 outputs cuBLAS took 6716 us on an H200, against 50304 1012 us: rows that start off a 16-byte border cannot
be stored in whole vectors. The result is a view of the padded rows where the task accepts that, else it is copied out,
at once or a few rows at a time so that the padded ones are still in the cache.
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
CHOICES: dict[str, tuple[Knob, ...]] = {"pad": (64, 8, 128, 256), "rows": (1024, 512, 2048)}


@dataclass
class PaddedLinear:
    """Proposes padded weights where the reference is one linear of half-precision rows that are no whole vectors."""

    loaded: LoadedTask
    name: str = "padded-linear"
    _found: list[Linear] | None = field(default=None, init=False, repr=False)
    _looked: bool = field(default=False, init=False, repr=False)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next layout or padding, None where the task is something else or not on a CUDA device."""
        if not task.device.startswith("cuda") or task.outputs != 1:
            return None
        if not self._looked:
            self._found, self._looked = linears(self.loaded.reference, self.loaded.inputs(0)), True
        if not self._found or not _odd(self._found[0], task):
            return None
        (found,) = self._found
        first: list[dict[str, Knob]] = [{"outputs": o, "pad": 64, "rows": 1024} for o in _LAYOUTS]
        return next_candidate(
            self.name, history, lambda knobs: _source(found, task, knobs), first, CHOICES, rejections=len(_LAYOUTS)
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


def _source(found: Linear, task: Task, knobs: dict[str, Knob]) -> str:
    names = task.inputs
    x, weight = names[found.x], names[found.weight]
    bias = f"torch.nn.functional.pad({names[found.bias]}.detach(), (0, _more))" if found.bias is not None else "None"
    layout, body = _LAYOUTS[knobs["outputs"]]
    return _SOURCE.format(
        pad=knobs["pad"],
        rows=knobs["rows"] if knobs["outputs"] == "chunks" else 0,
        layout=layout,
        arguments=", ".join(names),
        weight=weight,
        bias=bias,
        body=body.format(x=x),
    )
