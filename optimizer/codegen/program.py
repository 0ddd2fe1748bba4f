"""The loop program: one memory-bound region as rows of columns, in no particular language.

The iteration space is a list of axes; the last one is the column axis, the others count rows. Instructions stand in
an order in which every operand precedes its use. A value varies over rows and columns ("full"), over rows ("row"),
over columns ("column") or not at all ("scalar"). Sizes and strides are unknown here: an emitter asks for them when it
meets real tensors, so one program serves every shape of the same rank and dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["full", "row", "column", "scalar"]
ReduceOp = Literal["sum", "prod", "max", "min", "any", "all"]

FLOATS = ("bfloat16", "float16", "float32", "float64")
HALVES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Input:
    """A tensor argument, by position. used: False if nothing of it is read."""

    name: str
    dtype: str
    rank: int
    used: bool = True


@dataclass(frozen=True)
class Axis:
    """One axis of the iteration space and how its size is found at run time.

    sources: input dimensions that are this axis times the axes in `inner`; where they disagree all but one must be 1.
    parts: a further divisor, for pieces that are not axes of their own (half of a dimension has 2).
    size: the size where no input tells it (an expand, a head dimension), else None.
    """

    name: str
    sources: tuple[tuple[int, int], ...]
    inner: tuple[int, ...]
    size: int | None
    parts: int = 1


@dataclass(frozen=True)
class Term:
    """A summand of an index: factor * sizes of `sizes` * (index of axis | value of an instruction | 1)."""

    factor: int
    sizes: tuple[int, ...]
    axis: int | None = None
    value: int | None = None


@dataclass(frozen=True)
class Index:
    """Where one dimension of an input is read: the sum of its terms.

    whole: the terms run through the dimension from end to end, so its size must be their range (or 1).
    """

    terms: tuple[Term, ...]
    whole: bool = False


@dataclass(frozen=True)
class Load:
    """Read an input. An index that holds a value is bounds-checked; out of range is an IndexError for the caller."""

    input: int
    index: tuple[Index, ...]
    dtype: str
    kind: Kind


@dataclass(frozen=True)
class Position:
    """An index as a number: what arange makes."""

    index: Index
    dtype: str
    kind: Kind


@dataclass(frozen=True)
class Constant:
    """A number of the region's own; nonfinite values are allowed."""

    value: float | int | bool
    dtype: str
    kind: Kind = "scalar"


@dataclass(frozen=True)
class SizeOf:
    """The product of axis sizes at run time, as a number."""

    axes: tuple[int, ...]
    dtype: str
    kind: Kind = "scalar"


@dataclass(frozen=True)
class Compute:
    """A pointwise operation; operands already have the dtype it computes in. "cast" converts to `dtype`."""

    op: str
    args: tuple[int, ...]
    dtype: str
    kind: Kind


@dataclass(frozen=True)
class Reduce:
    """Reduce a value over the column axis. max and min propagate NaN."""

    op: ReduceOp
    arg: int
    dtype: str
    kind: Kind


Instruction = Load | Position | Constant | SizeOf | Compute | Reduce


@dataclass(frozen=True)
class Output:
    """A tensor to be made. dims: the axes merged in each dimension, () for size 1.

    order: dimensions from the outermost in memory to the innermost; the tensor is dense.
    pieces: the value at each position of the program's unrolled axis, () where that axis is none of the tensor's.
    """

    value: int
    dtype: str
    dims: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    pieces: tuple[int, ...] = ()


@dataclass(frozen=True)
class LoopProgram:
    """A whole region.

    single: the reference returned one tensor, not a tuple. pinned: (input, dim, size) that must be as traced.
    unrolled: an axis no loop runs over, because the code has an instruction for each position along it (`unroll.py`).
    spans: what is read in terms of all axes, to check sizes by; () where the loads of `code` say it themselves.
    """

    inputs: tuple[Input, ...]
    axes: tuple[Axis, ...]
    code: tuple[Instruction, ...]
    outputs: tuple[Output, ...]
    single: bool = False
    pinned: tuple[tuple[int, int, int], ...] = ()
    unrolled: int | None = None
    spans: tuple[Load, ...] = ()

    @property
    def column(self) -> int:
        return len(self.axes) - 1

    @property
    def reduces(self) -> bool:
        return any(isinstance(item, Reduce) for item in self.code)

    def __str__(self) -> str:
        lines = [f"({', '.join(f'{i.name}: {i.dtype}[{i.rank}]' for i in self.inputs)})"]
        lines += [f"  axis {self._axis(i)}" for i in range(len(self.axes))]
        lines += [f"  v{i}: {item.dtype} {item.kind} = {self._text(item)}" for i, item in enumerate(self.code)]
        for o in self.outputs:
            values = ", ".join(f"v{v}" for v in o.pieces or (o.value,))
            lines.append(f"  out[{', '.join(self._product(d) for d in o.dims)}]: {o.dtype} = {values}")
        return "\n".join(lines)

    def _axis(self, position: int) -> str:
        axis = self.axes[position]
        sizes = [f"{self.inputs[i].name}.shape[{d}]" for i, d in axis.sources] or [str(axis.size)]
        inner = f" // {self._product(axis.inner)}" if axis.inner else ""
        parts = f" // {axis.parts}" if axis.parts != 1 else ""
        return f"{axis.name} = {' | '.join(sizes)}{inner}{parts}"

    def _product(self, axes: tuple[int, ...]) -> str:
        return "*".join(self.axes[a].name for a in axes) or "1"

    def _index(self, index: Index) -> str:
        return " + ".join(self._term(t) for t in index.terms) or "0"

    def _term(self, term: Term) -> str:
        parts = [str(term.factor)] if term.factor != 1 else []
        parts += [f"#{self.axes[a].name}" for a in term.sizes]
        parts += [self.axes[term.axis].name] if term.axis is not None else []
        parts += [f"v{term.value}"] if term.value is not None else []
        return "*".join(parts) or "1"

    def _text(self, item: Instruction) -> str:
        if isinstance(item, Load):
            return f"{self.inputs[item.input].name}[{', '.join(self._index(i) for i in item.index)}]"
        if isinstance(item, Position):
            return f"position({self._index(item.index)})"
        if isinstance(item, Constant):
            return repr(item.value)
        if isinstance(item, SizeOf):
            return f"size({self._product(item.axes)})"
        if isinstance(item, Compute):
            return f"{item.op}({', '.join(f'v{a}' for a in item.args)})"
        return f"{item.op}_over_columns(v{item.arg})"
