"""Turn instructions over discovered axes into a `LoopProgram`: choose columns, order rows, drop what is dead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .axes import Group, Unsupported
from .build import Builder, Tensor, reduced_axes
from .program import (
    Axis,
    Compute,
    Index,
    Input,
    Instruction,
    Kind,
    Load,
    LoopProgram,
    Output,
    Position,
    Reduce,
    SizeOf,
    Term,
)


@dataclass(frozen=True)
class Wanted:
    """A result of the region. order: its dimensions from the outermost in memory to the innermost."""

    tensor: Tensor
    order: tuple[int, ...]


def finish(builder: Builder, inputs: Sequence[Input], wanted: Sequence[Wanted], *, single: bool) -> LoopProgram:
    """Return the program that makes `wanted`; raise Unsupported where one loop nest cannot."""
    done: dict[int, int] = {}
    wanted = [replace(w, tensor=replace(w.tensor, value=builder.unrolled(w.tensor.value, done))) for w in wanted]
    live = _live(builder, [w.tensor.value for w in wanted])
    axes = _space(builder, wanted, live)
    number = {axis: n for n, axis in enumerate(axes)}
    code: list[Instruction] = []
    renamed: dict[int, int] = {}
    for value in live:
        item = _renamed(builder, builder.code[value], renamed, number)
        code.append(replace(item, kind=kind_of(item, code, len(axes) - 1)))
        renamed[value] = len(code) - 1
    outputs = tuple(_output(builder, w, renamed, number) for w in wanted)
    read = {item.input for item in code if isinstance(item, Load)}
    program = LoopProgram(
        tuple(replace(i, used=n in read) for n, i in enumerate(inputs)),
        tuple(_axis(builder, axis, number) for axis in axes),
        tuple(code),
        outputs,
        single,
        tuple(sorted((i, d, builder.shapes[i][d]) for i, d in builder.pinned if i in read)),
    )
    _check(program)
    return program


def _live(builder: Builder, roots: Sequence[int]) -> list[int]:
    """Return what the roots need, operands first."""
    order: dict[int, None] = {}
    stack = [(r, False) for r in reversed(roots)]
    while stack:
        value, ready = stack.pop()
        if value in order:
            continue
        if ready:
            order[value] = None
            continue
        stack.append((value, True))
        stack += [(v, False) for v in reversed(needs(builder.code[value]))]
    return list(order)


def needs(item: Instruction) -> tuple[int, ...]:
    """Return the values an instruction reads."""
    if isinstance(item, Compute):
        return item.args
    if isinstance(item, Reduce):
        return (item.arg,)
    indexes = item.index if isinstance(item, Load) else (item.index,) if isinstance(item, Position) else ()
    return tuple(t.value for i in indexes for t in i.terms if t.value is not None)


def _space(builder: Builder, wanted: Sequence[Wanted], live: Sequence[int]) -> list[int]:
    """Return the axes of the iteration space, the column axis last."""
    stored = [_memory_axes(builder, w) for w in wanted]
    widest: Group = max(stored, key=len)
    order = list(widest)
    for axes in stored:
        order += [a for a in axes if a not in order]
    reduced = {builder.axes.leaves(reduced_axes(builder.code[v])) for v in live if isinstance(builder.code[v], Reduce)}
    columns = {a for group in reduced for a in group}
    if len(columns) > 1:
        raise Unsupported(f"reductions over {len(columns)} different axes: not expressible as rows of columns")
    column = columns.pop() if columns else order[-1] if order else builder.axes.new(1)
    order = [a for a in order if a != column]
    used = {t.axis for v in live for t in _terms(builder, builder.code[v]) if t.axis is not None}
    missing = [a for a in used if a not in order and a != column and builder.axes.hint(a) != 1]
    if missing:
        raise Unsupported("a value varies along an axis that no output has: not expressible as rows of columns")
    for axes in stored:
        if set(order) - set(axes):
            raise Unsupported("outputs of different row shapes: not expressible as one loop nest")
    return [*order, column]


def _memory_axes(builder: Builder, wanted: Wanted) -> Group:
    return builder.axes.leaves([a for d in wanted.order for a in wanted.tensor.dims[d]])


def _terms(builder: Builder, item: Instruction) -> tuple[Term, ...]:
    indexes = item.index if isinstance(item, Load) else (item.index,) if isinstance(item, Position) else ()
    return tuple(t for i in indexes for t in builder.spread(i.terms))


def _renamed(builder: Builder, item: Instruction, values: dict[int, int], axes: dict[int, int]) -> Instruction:
    def outside(sizes: Group) -> int:
        gone = [a for a in sizes if a not in axes and builder.axes.hint(a) != 1]
        if any(builder.axes.sources[a] for a in gone):
            raise Unsupported("an index counts in steps of an input's dimension that no output has")
        return builder.axes.size(gone)

    def index(old: Index) -> Index:
        terms = [
            Term(
                t.factor * outside(t.sizes),
                tuple(axes[a] for a in t.sizes if a in axes),
                None if t.axis is None else axes[t.axis],
                None if t.value is None else values[t.value],
            )
            for t in builder.spread(old.terms)
            if t.axis is None or t.axis in axes
        ]
        return Index(tuple(terms), old.whole)

    if isinstance(item, Load):
        return replace(item, index=tuple(index(i) for i in item.index))
    if isinstance(item, Position):
        return replace(item, index=index(item.index))
    if isinstance(item, Compute):
        return replace(item, args=tuple(values[a] for a in item.args))
    if isinstance(item, Reduce):
        return Reduce(item.op, values[item.arg], item.dtype, item.kind)
    if isinstance(item, SizeOf):
        return replace(item, axes=tuple(axes[a] for a in builder.axes.leaves(item.axes) if a in axes))
    return item


def kind_of(item: Instruction, code: Sequence[Instruction], column: int) -> Kind:
    """Return what an instruction varies over; `code` holds those it reads, `column` is the column axis."""
    if isinstance(item, Reduce):
        return "row"
    rows = columns = False
    for value in needs(item):
        kind = code[value].kind
        rows, columns = rows or kind in ("row", "full"), columns or kind in ("column", "full")
    indexes = item.index if isinstance(item, Load) else (item.index,) if isinstance(item, Position) else ()
    for term in (t for i in indexes for t in i.terms if t.axis is not None):
        rows, columns = rows or term.axis != column, columns or term.axis == column
    return "full" if rows and columns else "row" if rows else "column" if columns else "scalar"


def _output(builder: Builder, wanted: Wanted, values: dict[int, int], axes: dict[int, int]) -> Output:
    dims = tuple(tuple(axes[a] for a in builder.axes.leaves(g)) for g in wanted.tensor.dims)
    return Output(values[wanted.tensor.value], wanted.tensor.dtype, dims, wanted.order)


def _axis(builder: Builder, axis: int, number: dict[int, int]) -> Axis:
    """Return how the size of a leaf is found: its own dimensions, a part of a split one, or as it was traced."""
    table = builder.axes
    name = "c" if number[axis] == len(number) - 1 else f"r{number[axis]}"
    if table.sources[axis]:
        return Axis(name, tuple(sorted(table.sources[axis])), (), None)
    if axis not in table.fixed:
        for whole, _ in table.splits():
            leaves = table.leaves((whole,))
            told = [a for a in leaves if a == axis or not (table.sources[a] or a in table.fixed)]
            # Where only a view tells the sizes of a dimension taken apart, the outermost part is the free one.
            if table.sources[whole] and axis in leaves and told[0] == axis and all(a in number for a in leaves):
                inner = tuple(number[a] for a in leaves if a != axis)
                return Axis(name, tuple(sorted(table.sources[whole])), inner, None)
            if table.sources[whole] and axis in leaves and told[0] == axis:
                rest = [a for a in leaves if a != axis and a not in number]
                inner = tuple(number[a] for a in leaves if a != axis and a in number)
                factor = table.size(rest)
                return Axis(name, tuple(sorted(table.sources[whole])), inner, None, factor)
    return Axis(name, (), (), table.hint(axis))


def _check(program: LoopProgram) -> None:
    if not any(item.kind in ("full", "row", "column") for item in program.code):
        raise Unsupported("the region reads no tensor: there is nothing to loop over")
    for output in program.outputs:
        item = program.code[output.value]
        if isinstance(item, Load) and not needs(item):
            raise Unsupported("an output is a view of an input: a kernel would have to copy it")
