"""From tensors to sizes, offsets and strides: what the Python half of every candidate has in common.

`SHARED` is run-time text each candidate carries; the functions write straight-line code for one program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .program import Axis, Index, Load, LoopProgram, Output, Position, SizeOf, Term

SHARED = '''
def _same(name, *sizes):
    wide = {s for s in sizes if s != 1}
    if len(wide) > 1:
        raise ValueError(f"axis {name}: expected one size, got {sorted(wide)}")
    return wide.pop() if wide else 1


def _part(name, size, inner):
    if size == 1 or not inner:
        return size and 1
    if size % inner:
        raise ValueError(f"axis {name}: {size} is not a multiple of {inner}")
    return size // inner


def _fits(name, dim, size, last, whole):
    if size != 1 and (last + 1 != size if whole else last >= size):
        raise ValueError(f"{name}: dimension {dim} has size {size}, expected {last + 1}{'' if whole else ' or more'}")


def _dense(shape, order):
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim], step = step, step * max(shape[dim], 1)
    return tuple(strides)


def _coalesce(sizes, walks, merge_columns):
    """Merge neighbouring axes that every access steps through as one; the column axis only if merge_columns."""
    columns = len(sizes) - 1
    kept, steps = [sizes[columns]], [[w[columns]] for w in walks]
    for axis in range(columns - 1, -1, -1):
        outer = len(kept) > 1
        if sizes[axis] == 1:
            continue
        if (outer or merge_columns) and all(w[axis] == s[0] * kept[0] for w, s in zip(walks, steps)):
            kept[0] *= sizes[axis]
        else:
            kept.insert(0, sizes[axis])
            for w, s in zip(walks, steps):
                s.insert(0, w[axis])
    missing = len(sizes) - len(kept)
    return [1] * missing + kept, [[0] * missing + s for s in steps]
'''


@dataclass(frozen=True)
class Access:
    """Something that walks through memory with the loops: a load, a position or an output.

    value: its instruction, None for an output. tensor: name of the tensor it walks, "" for a position.
    piece: its position along the unrolled axis, for an output.
    """

    name: str
    value: int | None
    output: int | None
    tensor: str
    varies: bool
    piece: int = 0


def accesses(program: LoopProgram) -> list[Access]:
    """Return all accesses of a program in the order the native code numbers them."""
    column = program.column
    found: list[Access] = []
    for value, item in enumerate(program.code):
        if isinstance(item, Load | Position):
            indexes = item.index if isinstance(item, Load) else (item.index,)
            varies = any(t.axis == column for i in indexes for t in i.terms)
            tensor = program.inputs[item.input].name if isinstance(item, Load) else ""
            found.append(Access(f"a{len(found)}", value, None, tensor, varies))
    for number, output in enumerate(program.outputs):
        varies = any(column in d for d in output.dims)
        for piece in range(len(output.pieces) or 1):
            found.append(Access(f"a{len(found)}", None, number, f"y{number}", varies, piece))
    return found


def gathers(program: LoopProgram) -> list[tuple[int, int, Term]]:
    """Return (load, dimension, term) for every index that is a value, in the order the native code numbers them."""
    return [
        (value, dim, term)
        for value, item in enumerate(program.code)
        if isinstance(item, Load)
        for dim, index in enumerate(item.index)
        for term in index.terms
        if term.value is not None
    ]


def size_values(program: LoopProgram) -> list[int]:
    return [value for value, item in enumerate(program.code) if isinstance(item, SizeOf)]


def axis_text(program: LoopProgram, axis: Axis, names: Sequence[str]) -> str:
    if axis.size is not None:
        return str(axis.size)
    inner = product(axis.inner, names) if axis.parts == 1 else f"{product(axis.inner, names)} * {axis.parts}"
    sizes = [f"{program.inputs[i].name}.shape[{d}]" for i, d in axis.sources]
    if axis.inner or axis.parts != 1:
        sizes = [f'_part("{axis.name}", {size}, {inner})' for size in sizes]
    return f'_same("{axis.name}", {", ".join(sizes)})'


def check_lines(program: LoopProgram, names: Sequence[str]) -> Iterator[str]:
    checks: dict[str, None] = {}
    for number, dim, size in program.pinned:
        name = program.inputs[number].name
        checks[f'    _fits("{name}", {dim}, {name}.shape[{dim}] if {size} != 1 else 1, {size - 1}, True)'] = None
    for item in program.spans or program.code:
        if not isinstance(item, Load):
            continue
        name = program.inputs[item.input].name
        for dim, index in enumerate(item.index):
            if not any(t.value is not None for t in index.terms):
                last = _last(index, names)
                checks[f'    _fits("{name}", {dim}, {name}.shape[{dim}], {last}, {index.whole})'] = None
    yield from checks


def _last(index: Index, names: Sequence[str]) -> str:
    parts = []
    for term in index.terms:
        factor = "*".join([str(term.factor), *(names[a] for a in term.sizes)])
        parts.append(factor if term.axis is None else f"{factor}*({names[term.axis]} - 1)")
    return " + ".join(parts) or "0"


def walk(program: LoopProgram, access: Access, names: Sequence[str]) -> tuple[str, list[str]]:
    """Return offset and stride along each axis, as expressions."""
    if access.output is not None:
        strides = _output_walk(program.outputs[access.output], access.output, names)
        return (f"{access.piece}*{strides[program.unrolled or 0]}" if access.piece else "0"), strides
    item = program.code[access.value or 0]
    assert isinstance(item, Load | Position)
    steps: dict[int | None, list[str]] = {}
    for dim, index in enumerate(item.index if isinstance(item, Load) else (item.index,)):
        unit = f"s_{access.tensor}[{dim}]" if access.tensor else "1"
        for term in index.terms:
            if term.value is None:
                steps.setdefault(term.axis, []).append(coefficient(term, names, unit))
    return " + ".join(steps.get(None, ["0"])), [" + ".join(steps.get(a, ["0"])) for a in range(len(names))]


def _output_walk(output: Output, number: int, names: Sequence[str]) -> list[str]:
    strides = ["0"] * len(names)
    for dim, group in enumerate(output.dims):
        for place, axis in enumerate(group):
            strides[axis] = "*".join([f"stride{number}[{dim}]", *(names[a] for a in group[place + 1 :])])
    return strides


def coefficient(term: Term, names: Sequence[str], unit: str) -> str:
    parts = [str(term.factor)] if term.factor != 1 else []
    parts += [names[a] for a in term.sizes]
    parts += [unit] if unit != "1" else []
    return "*".join(parts) or "1"


def product(axes: Sequence[int], names: Sequence[str]) -> str:
    return "*".join(names[a] for a in axes) or "1"


def tuple_text(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def plan_lines(program: LoopProgram) -> Iterator[str]:
    """Yield the statements every plan begins with: they leave shapeN, strideN, walks, offsets, sizes and extra.

    walks and sizes are coalesced; extra holds the sizes of `size_values`, then (step, bound) of each of `gathers`.
    """
    names = [a.name for a in program.axes]
    for used in (i for i in program.inputs if i.used):
        yield f'    s_{used.name} = _strides({used.name}, "{used.name}", torch.{used.dtype}, {used.rank})'
    # An axis told by an input comes before one that is the rest of a dimension others have a part in.
    for axis in sorted(program.axes, key=lambda a: len(a.inner)):
        yield f"    {axis.name} = {axis_text(program, axis, names)}"
    yield from check_lines(program, names)
    for number, output in enumerate(program.outputs):
        yield f"    shape{number} = {tuple_text([product(d, names) for d in output.dims])}"
        yield f"    stride{number} = _dense(shape{number}, {output.order})"
    steps = [(a, walk(program, a, names)) for a in accesses(program)]
    yield "    walks = ["
    yield from (f"        [{', '.join(strides)}],  # {a.name}: {a.tensor or 'position'}" for a, (_, strides) in steps)
    yield "    ]"
    yield f"    offsets = [{', '.join(offset for _, (offset, _) in steps)}]"
    looped = ["1" if axis == program.unrolled else name for axis, name in enumerate(names)]
    yield f"    sizes, walks = _coalesce([{', '.join(looped)}], walks, {not program.reduces})"
    yield f"    extra = [{', '.join(_extra(program, names))}]"


def _extra(program: LoopProgram, names: Sequence[str]) -> Iterator[str]:
    for value in size_values(program):
        item = program.code[value]
        assert isinstance(item, SizeOf)
        yield product(item.axes, names)
    for value, dim, term in gathers(program):
        load = program.code[value]
        assert isinstance(load, Load)
        tensor = program.inputs[load.input].name
        yield coefficient(term, names, f"s_{tensor}[{dim}]")
        yield f"{tensor}.shape[{dim}]"
