"""Take apart a short axis of pieces, so that all pieces of a row are made together.

What concatenates or stacks pieces of a row, as rotary embeddings do, has an axis of two or so positions, and each value
is chosen by the position. As a loop it reads every input once for each piece. Written out, an instruction for each
position, the choices are gone and what two pieces read is read once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .finish import kind_of, needs
from .program import (
    Axis,
    Compute,
    Constant,
    Index,
    Instruction,
    Load,
    LoopProgram,
    Output,
    Position,
    Reduce,
    SizeOf,
    Term,
)

MOST = 4  # positions: each has its own values, which take registers


def unrolled(program: LoopProgram) -> LoopProgram:
    """Return the program with its axis of pieces written out, or as it is where it has none."""
    axis = _pieces(program)
    return program if axis is None else _Unroll(program, axis).program()


def _pieces(program: LoopProgram) -> int | None:
    """Return the first axis of a size that is fixed and small, by whose position alone something is chosen."""
    chosen = {_lone_axis(item.index) for item in program.code if isinstance(item, Position)}
    for number, axis in enumerate(program.axes):
        reduced = program.reduces and number == program.column
        if number in chosen and axis.size is not None and 2 <= axis.size <= MOST and not reduced:
            return number if len(program.axes) > 1 else None
    return None


def _lone_axis(index: Index) -> int | None:
    axes = [t.axis for t in index.terms]
    return axes[0] if len(axes) == 1 else None


class _Unroll:
    """Writes a program again with `axis` as its first, which no loop runs over."""

    def __init__(self, program: LoopProgram, axis: int) -> None:
        self._old, self._axis = program, axis
        self._count = program.axes[axis].size or 1
        others = [n for n in range(len(program.axes)) if n != axis]
        self._number = {old: new for new, old in enumerate([axis, *others])}
        self._moving = self._depends()
        self._code: list[Instruction] = []
        self._known: dict[Instruction, int] = {}
        self._made: dict[tuple[int, int], int] = {}

    def program(self) -> LoopProgram:
        old = self._old
        outputs = tuple(self._output(o) for o in old.outputs)
        axes = [old.axes[n] for n in sorted(self._number, key=self._number.__getitem__)]
        spans = {self._everywhere(item): None for item in old.code if isinstance(item, Load)}
        return replace(
            old,
            axes=tuple(self._renumbered(a) for a in axes),
            code=tuple(self._code),
            outputs=outputs,
            unrolled=0,
            spans=tuple(spans),
        )

    def _depends(self) -> set[int]:
        """Return the values that are not the same at every position."""
        found = set[int]()
        for value, item in enumerate(self._old.code):
            indexes = item.index if isinstance(item, Load) else (item.index,) if isinstance(item, Position) else ()
            own = any(t.axis == self._axis for i in indexes for t in i.terms)
            if own or any(v in found for v in needs(item)):
                found.add(value)
        return found

    def _output(self, output: Output) -> Output:
        dims = tuple(tuple(self._number[a] for a in d) for d in output.dims)
        if not any(self._axis in d for d in output.dims):
            return replace(output, value=self._at(output.value, 0), dims=dims)
        pieces = tuple(self._at(output.value, n) for n in range(self._count))
        return replace(output, value=pieces[0], dims=dims, pieces=pieces)

    def _at(self, value: int, position: int) -> int:
        """Return the new value that the old one is at a position along the axis."""
        key = (value, position if value in self._moving else 0)
        if key not in self._made:
            self._made[key] = self._written(self._old.code[value], position)
        return self._made[key]

    def _written(self, item: Instruction, position: int) -> int:
        if isinstance(item, Load):
            return self._add(replace(item, index=tuple(self._placed(i, position) for i in item.index)))
        if isinstance(item, Position):
            index = self._placed(item.index, position)
            if all(t.axis is None and t.value is None and not t.sizes for t in index.terms):
                return self._add(Constant(sum(t.factor for t in index.terms), item.dtype))
            return self._add(replace(item, index=index))
        if isinstance(item, Compute):
            return self._computed(item, tuple(self._at(a, position) for a in item.args))
        if isinstance(item, Reduce):
            return self._add(replace(item, arg=self._at(item.arg, position)))
        if isinstance(item, SizeOf):
            return self._add(replace(item, axes=tuple(self._number[a] for a in item.axes)))
        return self._add(item)

    def _computed(self, item: Compute, args: tuple[int, ...]) -> int:
        """Return a pointwise instruction, or what it comes to where the position decides it."""
        first = self._code[args[0]]
        if item.op == "where" and isinstance(first, Constant):
            return args[1] if first.value else args[2]
        if item.op == "eq" and isinstance(first, Constant) and isinstance(second := self._code[args[1]], Constant):
            return self._add(Constant(first.value == second.value, "bool"))
        return self._add(replace(item, args=args))

    def _add(self, item: Instruction) -> int:
        item = replace(item, kind=kind_of(item, self._code, len(self._number) - 1))
        if item not in self._known:
            self._known[item] = len(self._code)
            self._code.append(item)
        return self._known[item]

    def _placed(self, index: Index, position: int) -> Index:
        """Return an index at a position, its terms in an order that makes equal ones the same."""

        def term(old: Term) -> Term:
            sizes = tuple(self._number[a] for a in old.sizes if a != self._axis)
            factor = old.factor * self._count ** (len(old.sizes) - len(sizes))
            value = None if old.value is None else self._at(old.value, position)
            if old.axis == self._axis:
                return Term(factor * position, sizes)
            return Term(factor, sizes, None if old.axis is None else self._number[old.axis], value)

        return Index(_summed(index, term))

    def _everywhere(self, load: Load) -> Load:
        """Return a load over all axes in their new order: what it reads, not how."""

        def term(old: Term) -> Term:
            axis = None if old.axis is None else self._number[old.axis]
            return Term(old.factor, tuple(self._number[a] for a in old.sizes), axis, old.value)

        return replace(load, index=tuple(Index(tuple(map(term, i.terms)), i.whole) for i in load.index))

    def _renumbered(self, axis: Axis) -> Axis:
        return replace(axis, inner=tuple(self._number[a] for a in axis.inner))


def _summed(index: Index, renewed: Callable[[Term], Term]) -> tuple[Term, ...]:
    """Return the renewed terms of an index: constants summed up, nothing that is 0, in one order."""
    factors: dict[tuple[tuple[int, ...], int, int], Term] = {}
    for term in map(renewed, index.terms):
        key = (term.sizes, -1 if term.axis is None else term.axis, -1 if term.value is None else term.value)
        known = factors.get(key)
        factors[key] = replace(term, factor=term.factor + known.factor) if known else term
    return tuple(factors[key] for key in sorted(factors) if factors[key].factor)
