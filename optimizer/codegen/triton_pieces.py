"""Loads and stores that lie side by side in memory: one wide access in place of several with gaps.

What reads every other element of a row, and elsewhere the rest, would keep its lanes in pieces of one element. Here
both are one load of the row, taken apart in registers; outputs whose pieces alternate are put together the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .program import Index, Load, LoopProgram, Output, Term

COUNTS = (2, 4)  # what can be taken apart and put together by halves


@dataclass(frozen=True)
class Strip:
    """Loads that alternate along the row. members: the load at each place, None where nothing reads it."""

    members: tuple[int | None, ...]

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def first(self) -> int:
        return next(m for m in self.members if m is not None)


def strips(program: LoopProgram) -> list[Strip]:
    """Return the groups of loads that together read rows end to end."""
    groups: dict[Load, dict[int, int]] = {}
    for value, item in enumerate(program.code):
        if isinstance(item, Load) and (found := _place(program, item)):
            base, place = found
            groups.setdefault(base, {})[place] = value
    made = []
    for base, places in groups.items():
        count = _step(program, base)
        if len(places) > 1:
            made.append(Strip(tuple(places.get(n) for n in range(count))))
    return made


def _place(program: LoopProgram, load: Load) -> tuple[Load, int] | None:
    """Return the load of the first of several neighbours, and which of them `load` is; None if it has none."""
    if any(t.value is not None for i in load.index for t in i.terms):
        return None
    count = _step(program, load)
    if count not in COUNTS:
        return None
    indexes, place = list(load.index), 0
    for dim, index in enumerate(indexes):
        if any(t.axis == program.column for t in index.terms):
            place = sum(t.factor for t in index.terms if t.axis is None and not t.sizes)
            rest = tuple(t for t in index.terms if t.axis is not None or t.sizes)
            start = place - place % count
            indexes[dim] = Index((*rest, Term(start, ())) if start else rest)
    return replace(load, index=tuple(indexes)), place % count


def _step(program: LoopProgram, load: Load) -> int:
    """Return by how many elements of a dimension the columns of a load are apart, 0 where that is no plain number."""
    found = [t for i in load.index for t in i.terms if t.axis == program.column]
    return found[0].factor if len(found) == 1 and not found[0].sizes else 0


def woven(program: LoopProgram, output: Output) -> bool:
    """Whether the pieces of an output alternate along its rows."""
    behind = (program.column, program.unrolled)
    return len(output.pieces) in COUNTS and any(dims[-2:] == behind for dims in output.dims)


def apart(names: list[str], loaded: str, rows: str) -> list[str]:
    """Return the statements that take the lanes of a wide load apart. names: one for each of its pieces."""
    if len(names) == 2:
        return [f"{names[0]}, {names[1]} = tl.split(tl.reshape({loaded}, ({rows}, BLOCK, 2)))"]
    even, odd = f"{names[0]}_even", f"{names[0]}_odd"
    return [
        f"{even}, {odd} = tl.split(tl.reshape({loaded}, ({rows}, BLOCK, 2, 2)))",
        f"{names[0]}, {names[2]} = tl.split({even})",
        f"{names[1]}, {names[3]} = tl.split({odd})",
    ]


def together(values: list[str]) -> str:
    """Return the expression of a tile in which the lanes of tiles (ROWS, BLOCK) alternate."""
    whole = [f"tl.broadcast_to({v}, (ROWS, BLOCK))" for v in values]
    if len(whole) == 2:
        joined = f"tl.join({whole[0]}, {whole[1]})"
    else:
        joined = f"tl.join(tl.join({whole[0]}, {whole[2]}), tl.join({whole[1]}, {whole[3]}))"
    return f"tl.reshape({joined}, (ROWS, {len(values)} * BLOCK))"
