"""Offer linears that share one input as one matmul of our own that writes every output dense, where it belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ...extractor.task import Task
from ..attempt import Knob
from .anchor_template import AnchorTemplate, settings
from .kernel_file import rendered
from .merged_linears import mergeable
from .recognise import Linear, linears

_HALVES = ("float16", "bfloat16")
_MOST = 4

_KNOBS = ("ROWS", "COLUMNS", "DEEP", "WARPS", "STAGES", "GROUP", "PARTS", "FLAT", "EACH")
_FIRST = (
    (128, 256, 64, 8, 4, 8, 2, True, 1), (128, 128, 64, 4, 3, 8, 2, True, 2), (128, 256, 64, 8, 3, 8, 1, False, 1),
    (128, 128, 64, 4, 4, 8, 1, False, 1), (64, 256, 64, 4, 4, 8, 1, False, 1), (128, 256, 64, 8, 3, 16, 2, True, 1),
    (128, 256, 64, 8, 4, 16, 2, True, 1), (256, 128, 64, 8, 4, 8, 2, True, 1), (128, 256, 64, 8, 3, 8, 2, True, 1),
)  # fmt: skip


class MergedMatmul(AnchorTemplate[list[Linear]]):
    """Proposes settings of one kernel where the reference is two to four linears of one half-precision input."""

    name: ClassVar[str] = "merged-matmul"
    choices: ClassVar[Mapping[str, Sequence[Knob]]] = {
        "ROWS": (128, 64, 256),
        "COLUMNS": (256, 128, 64),
        "DEEP": (64, 128),
        "WARPS": (8, 4),
        "STAGES": (4, 3, 2),
        "GROUP": (8, 4, 16),
        "PARTS": (2, 1),
        "FLAT": (True, False),
        "EACH": (1, 2),
        "EARLY": (True, False),
    }
    rejections: ClassVar[int] = len(_FIRST)  # a tile too large for the device is no mistake of the rest

    def look(self, task: Task) -> list[Linear] | None:
        found = linears(self.loaded.reference, self.loaded.inputs(0)) if 2 <= task.outputs <= _MOST else None
        fits = found and mergeable(found, task) and task.cases[0].inputs[found[0].x].dtype in _HALVES
        return found if fits else None

    def first(self, found: list[Linear], task: Task) -> list[dict[str, Knob]]:
        return [row | {"EARLY": True} for row in settings(_KNOBS, _FIRST)]

    def source(self, found: list[Linear], task: Task, knobs: dict[str, Knob]) -> str:
        constants = {k: str(v) for k, v in knobs.items()}
        return rendered("merged_matmul_kernel.py", constants, _wrapper(found, task.inputs))


def _wrapper(found: Sequence[Linear], names: Sequence[str]) -> str:
    arguments = ", ".join(names)
    weights = ", ".join(names[f.weight] for f in found)
    biases = ", ".join(names[f.bias] for f in found if f.bias is not None)
    sizes = ", ".join(f"{names[f.weight]}.shape[0]" for f in found)
    return f"""def prepare({arguments}):
    return _packed([{weights}], [{biases}])


def kernel({arguments}, *, packed):
    return _linears({names[found[0].x]}, [{sizes}], packed)
"""
