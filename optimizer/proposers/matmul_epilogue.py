"""Offer a linear and the pointwise ops behind it as one matmul on a GPU: bias, activation and residual in one pass.

A linear with nothing behind it is the library's work, except where its rows have no common 16-byte border.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import fx

from ...extractor.task import Task
from ..attempt import Knob
from .anchor_template import AnchorTemplate, settings
from .kernel_file import rendered
from .recognise import Linear, aten, input_position, linear, results, traced, value, without_views

_HALVES = ("float16", "bfloat16")
_MOST_EXTRAS = 4

_VECTOR = 8  # halves in 16 bytes

_KNOBS = ("ROWS", "COLUMNS", "DEEP", "WARPS", "STAGES", "GROUP", "PARTS", "FLAT", "EACH")
_FIRST = (
    (128, 256, 64, 8, 4, 8, 2, True, 1), (128, 128, 64, 4, 3, 8, 2, True, 2), (128, 256, 64, 8, 3, 8, 2, False, 1),
    (128, 128, 64, 4, 3, 8, 1, False, 2), (128, 256, 64, 8, 4, 16, 2, True, 1), (256, 128, 64, 8, 4, 8, 2, True, 1),
    (64, 128, 64, 4, 4, 8, 1, True, 2),
)  # fmt: skip

# ATen overload to its text over fp32 tiles; operands are {0} and {1}.
_POINTWISE: dict[Any, str] = {
    aten.add.Tensor: "({0} + {1})",
    aten.sub.Tensor: "({0} - {1})",
    aten.mul.Tensor: "({0} * {1})",
    aten.div.Tensor: "({0} / {1})",
    aten.neg.default: "(-{0})",
    aten.relu.default: "tl.where({0} < 0, 0.0, {0})",  # keeps nan, as torch does
    aten.silu.default: "({0} * tl.sigmoid({0}))",
    aten.sigmoid.default: "tl.sigmoid({0})",
    aten.tanh.default: "_tanh({0})",
    aten.exp.default: "tl.exp({0})",
}
_GELUS = {"none": "_gelu({0})", "tanh": "_gelu_tanh({0})"}


class _Unknown(Exception):
    """The graph holds what no epilogue here expresses."""


@dataclass(frozen=True)
class _Fused:
    """A linear and what follows. lines: the epilogue's body. extras: names of its inputs; along: one value a column."""

    linear: Linear
    lines: tuple[str, ...]
    extras: tuple[str, ...]
    along: tuple[bool, ...]
    dtype: str


class MatmulEpilogue(AnchorTemplate[_Fused]):
    """Proposes settings of one kernel where the reference is a linear in half precision followed by pointwise ops."""

    name: ClassVar[str] = "matmul-epilogue"
    choices: ClassVar[Mapping[str, Sequence[Knob]]] = {
        "ROWS": (128, 64, 256),
        "COLUMNS": (256, 128, 64),
        "DEEP": (64, 128, 32),
        "WARPS": (8, 4),
        "STAGES": (4, 3, 2),
        "GROUP": (8, 4, 16),
        "PARTS": (2, 1),
        "FLAT": (True, False),
        "EACH": (1, 2),
        "EARLY": (True, False),
    }
    rejections: ClassVar[int] = len(_FIRST)  # a tile too large for the device is no mistake of the rest

    def look(self, task: Task) -> _Fused | None:
        graph = traced(self.loaded.reference, self.loaded.inputs(0)) if task.outputs == 1 else None
        found = _fused(graph, task.inputs) if graph is not None else None
        return None if found is None or any(s.dtype not in _HALVES for s in _factors(found, task)) else found

    def first(self, found: _Fused, task: Task) -> list[dict[str, Knob]]:
        return [row | {"EARLY": True} for row in settings(_KNOBS, _FIRST)]

    def source(self, found: _Fused, task: Task, knobs: dict[str, Knob]) -> str:
        given = ", ".join([task.inputs[found.linear.x], task.inputs[found.linear.weight], *found.extras])
        wrapper = f"def kernel({', '.join(task.inputs)}):\n    return _linear({given})"
        constants = {k: str(v) for k, v in knobs.items()}
        constants |= {"OUT": f"torch.{found.dtype}", "ALONG": repr(found.along)}
        source = rendered("matmul_epilogue_kernel.py", constants, wrapper)
        return source.replace("    return acc\n", "".join(f"    {line}\n" for line in found.lines))


def _factors(found: _Fused, task: Task) -> list[Any]:
    return [case.inputs[i] for case in task.cases for i in (found.linear.x, found.linear.weight)]


def _fused(graph: fx.Graph, names: Sequence[str]) -> _Fused | None:
    """Return what a graph is, None where it is no linear, one for the library, or holds anything else."""
    (last, *others) = results(graph)
    if others or not isinstance(last, fx.Node):
        return None
    writer = _Writer(names, tuple(value(last).shape))
    try:
        made = writer.text(last)
    except _Unknown:
        return None
    found = writer.linear
    if found is None or len(writer.extras) > _MOST_EXTRAS:
        return None
    if not writer.lines and value(last).shape[-1] % _VECTOR == 0:
        return None
    dtype = str(value(last).dtype).removeprefix("torch.")
    along = tuple(writer.extras.values())
    return _Fused(found, (*writer.lines, f"return {made}"), tuple(writer.extras), along, dtype)


class _Writer:
    """Writes the ops behind a linear as lines of Triton, each value once. extras: input to whether it is one row."""

    def __init__(self, names: Sequence[str], shape: tuple[int, ...]) -> None:
        self._names, self._shape = names, shape
        self._written: dict[fx.Node, str] = {}
        self.linear: Linear | None = None
        self.lines: list[str] = []
        self.extras: dict[str, bool] = {}

    def text(self, node: Any) -> str:
        """Return what stands for a node's value; raise _Unknown where nothing can."""
        if isinstance(node, int | float) and not isinstance(node, bool):
            return repr(float(node))
        node = without_views(node)
        if not isinstance(node, fx.Node):
            raise _Unknown
        if node not in self._written:
            self._written[node] = self._leaf(node) or self._op(node)
        return self._written[node]

    def _leaf(self, node: fx.Node) -> str | None:
        found = linear(node)
        if found is not None:
            if self.linear is not None or value(node).shape[-1] != self._shape[-1]:
                raise _Unknown
            self.linear = found
            return "acc" if found.bias is None else self._named(f"acc + {self._extra(found.bias, row=True)}")
        position = input_position(node)
        if position is None:
            return None
        shape = tuple(value(node).shape)
        if shape not in (self._shape, self._shape[-1:]) or not value(node).is_floating_point():
            raise _Unknown
        return self._named(self._extra(position, row=shape != self._shape))

    def _op(self, node: fx.Node) -> str:
        given: Any = node.args
        if node.target in (aten._to_copy.default, aten.to.dtype):
            if not value(node).is_floating_point():
                raise _Unknown
            return self.text(given[0])
        if node.target is aten.gelu.default:
            return self._named(_GELUS[node.kwargs.get("approximate", "none")].format(self.text(given[0])))  # type: ignore[index]
        if node.target is aten.pow.Tensor_Scalar and given[1] in (2, 3):
            base = self.text(given[0])
            return self._named(" * ".join([base] * int(given[1])))
        form = _POINTWISE.get(node.target)
        if form is None or node.kwargs:
            raise _Unknown
        return self._named(form.format(*(self.text(a) for a in given)))

    def _extra(self, position: int, *, row: bool) -> str:
        name = self._names[position]
        if self.extras.setdefault(name, row) != row:
            raise _Unknown
        pointer = f"e{list(self.extras).index(name)}"
        return f"_along({pointer}, column, n)" if row else f"_whole({pointer}, row, column, n, inside)"

    def _named(self, expression: str) -> str:
        self.lines.append(f"v{len(self.lines)} = {expression}")
        return f"v{len(self.lines) - 1}"
