"""Build the instructions of a loop program while its axes are still being discovered.

A `Tensor` here is an instruction with the groups of axes its dimensions are made of. Views cost nothing: they regroup
axes or substitute an axis in the loads beneath. `finish` in `finish.py` turns the result into a `LoopProgram`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .axes import AxisTable, Group, Unsupported
from .program import HALVES, Compute, Constant, Index, Instruction, Load, Position, Reduce, ReduceOp, SizeOf, Term


@dataclass(frozen=True)
class Tensor:
    """A traced tensor. dtype: what the reference made it; halves are computed in float32 and rounded when stored."""

    value: int
    dims: tuple[Group, ...]
    dtype: str


Number = float | int | bool
Operand = Tensor | Number
Terms = tuple[Term, ...]


def computed_in(dtype: str) -> str:
    """Return the dtype in which values of `dtype` are held between load and store."""
    return "float32" if dtype in HALVES else dtype


class Builder:
    """Instructions over axes; equal instructions are one."""

    def __init__(self) -> None:
        self.axes = AxisTable()
        self.code: list[Instruction] = []
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.pinned: set[tuple[int, int]] = set()
        self._known: dict[Instruction, int] = {}

    def add(self, item: Instruction) -> int:
        if item not in self._known:
            self._known[item] = len(self.code)
            self.code.append(item)
        return self._known[item]

    # --- leaves -------------------------------------------------------------------------------------------------

    def load(self, position: int, shape: Sequence[int], dtype: str) -> Tensor:
        self.shapes[position] = tuple(shape)
        axes = [self.axes.new(size, (position, dim)) for dim, size in enumerate(shape)]
        index = tuple(Index((Term(1, (), axis=a),), whole=True) for a in axes)
        value = self.add(Load(position, index, computed_in(dtype), "full"))
        return Tensor(value, tuple((a,) for a in axes), dtype)

    def constant(self, number: Number, dtype: str) -> int:
        held = computed_in(dtype)
        kind: Callable[[Number], Number] = bool if held == "bool" else float if held.startswith("float") else int
        return self.add(Constant(kind(number), held))

    def arange(self, size: int, start: int, step: int, dtype: str) -> Tensor:
        axis = self.axes.new(size)
        index = Index((Term(start, ()), Term(step, (), axis=axis)))
        return Tensor(self.add(Position(index, computed_in(dtype), "full")), ((axis,),), dtype)

    def size_of(self, groups: Sequence[Group], dtype: str) -> int:
        return self.add(SizeOf(tuple(a for g in groups for a in g), dtype))

    # --- pointwise ----------------------------------------------------------------------------------------------

    def cast(self, value: int, dtype: str) -> int:
        item = self.code[value]
        if item.dtype == dtype:
            return value
        if isinstance(item, Constant):
            return self.constant(item.value, dtype)
        return self.add(Compute("cast", (value,), dtype, "full"))

    def operand(self, operand: Operand, dtype: str) -> int:
        if isinstance(operand, Tensor):
            return self.cast(operand.value, dtype)
        return self.constant(operand, dtype)

    def compute(self, op: str, args: Sequence[int], dtype: str) -> int:
        return self.add(Compute(op, tuple(args), dtype, "full"))

    def pointwise(self, op: str, operands: Sequence[Operand], within: str, dtype: str, why: str) -> Tensor:
        """Apply `op` to broadcast operands cast to `within`; the result is of `dtype`."""
        held = computed_in(within)
        operands, dims = self.align(operands, why)
        value = self.compute(op, [self.operand(o, held) for o in operands], "bool" if dtype == "bool" else held)
        return Tensor(self.cast(value, computed_in(dtype)), dims, dtype)

    def align(self, operands: Sequence[Operand], why: str) -> tuple[list[Operand], tuple[Group, ...]]:
        """Return the operands over common axes, and the groups of axes of their broadcast shape."""
        rank = max((len(o.dims) for o in operands if isinstance(o, Tensor)), default=0)
        dims: list[Group] = [()] * rank
        aligned: list[Operand] = []
        for operand in operands:
            if isinstance(operand, Tensor):
                operand = self._apart(operand, dims, why)
                for back in range(1, len(operand.dims) + 1):
                    dims[-back] = self._join(dims[-back], operand.dims[-back], why)
            aligned.append(operand)
        return aligned, tuple(dims)

    def _join(self, left: Group, right: Group, why: str) -> Group:
        """Return the group two broadcast dimensions have in common."""
        a, b = self.axes.size(self.axes.leaves(left)), self.axes.size(self.axes.leaves(right))
        if not right or (b == 1 and a != 1):
            return left
        if not left or (a == 1 and b != 1):
            return right
        if a != b:
            raise Unsupported(f"{why}: sizes {a} and {b} do not broadcast")
        return self.axes.unite(left, right, why)

    def _apart(self, tensor: Tensor, dims: Sequence[Group], why: str) -> Tensor:
        """Return the tensor over fresh axes where joining it would make one axis of two that must stay apart.

        x + x.T of a square x is such a case, and a position compared with itself transposed: one axis would then run
        through both dimensions of a load and only its diagonal would be read.
        """
        fresh = {axis: self.axes.again(axis) for axis in self._clashes(tensor, dims)}
        if not fresh:
            return tensor
        value = self.substitute(tensor.value, {old: (Term(1, (), axis=new),) for old, new in fresh.items()})
        groups = tuple(tuple(fresh.get(a, a) for a in self.axes.leaves(g)) for g in tensor.dims)
        tensor = Tensor(value, groups, tensor.dtype)
        if self._clashes(tensor, dims):
            raise Unsupported(f"{why}: two dimensions of one tensor would have to be the same axis")
        return tensor

    def _clashes(self, tensor: Tensor, dims: Sequence[Group]) -> list[int]:
        """Return the axes of `tensor` that cannot be joined with those of `dims` as they are."""
        together = [{t.axis for i in _indexes(item) for t in self.spread(i.terms)} for item in self.code]
        there = {a: place for place, g in enumerate(dims) for a in self.axes.leaves(g)}
        found: dict[int, None] = {}
        offset = len(dims) - len(tensor.dims)
        for place, group in enumerate(tensor.dims, offset):
            mine, theirs = _unlike(self.axes.leaves(group), self.axes.leaves(dims[place]))
            for axis in mine:
                others = [a for a in theirs if a != axis]
                if there.get(axis, place) != place or any(axis in s and o in s for s in together for o in others):
                    found[axis] = None
        return list(found)

    # --- reductions ---------------------------------------------------------------------------------------------

    def reduce(self, op: ReduceOp, tensor: Tensor, dims: Sequence[int], *, keep: bool, dtype: str) -> Tensor:
        """Reduce over dimensions; the argument must already be in the dtype the reduction runs in."""
        value = tensor.value
        axes = tuple(a for d in dims for a in self.axes.leaves(tensor.dims[d]))
        if axes:
            value = self.add(_Over(op, value, computed_in(dtype), "full", axes))
        return Tensor(value, self.without(tensor.dims, dims, keep=keep), dtype)

    @staticmethod
    def without(dims: tuple[Group, ...], gone: Sequence[int], *, keep: bool) -> tuple[Group, ...]:
        if keep:
            return tuple(() if d in gone else g for d, g in enumerate(dims))
        return tuple(g for d, g in enumerate(dims) if d not in gone)

    def unrolled(self, value: int, done: dict[int, int]) -> int:
        """Return `value` with reductions over several axes taken apart along those that are pieces of a dimension.

        A norm over a dimension whose halves are rotated later sums over (2, half): that is the sum over one half plus
        the sum over the other.
        """
        if value not in done:
            item = self.code[value]
            if isinstance(item, Compute):
                item = replace(item, args=tuple(self.unrolled(a, done) for a in item.args))
            elif isinstance(item, Load | Position):
                indexes = tuple(
                    replace(i, terms=tuple(self._unrolled_term(t, done) for t in i.terms)) for i in _indexes(item)
                )
                item = replace(item, index=indexes) if isinstance(item, Load) else replace(item, index=indexes[0])
            done[value] = self._taken_apart(item, done) if isinstance(item, _Over) else self.add(item)
        return done[value]

    def _unrolled_term(self, term: Term, done: dict[int, int]) -> Term:
        return term if term.value is None else replace(term, value=self.unrolled(term.value, done))

    def _taken_apart(self, item: _Over, done: dict[int, int]) -> int:
        arg, axes = self.unrolled(item.arg, done), self.axes.leaves(item.axes)
        pieces = [a for a in axes if a in self.axes.fixed]
        if len(axes) < 2 or not pieces:
            return self.add(replace(item, arg=arg))
        rest = tuple(a for a in axes if a != pieces[0])
        total: int | None = None
        for number in range(self.axes.hint(pieces[0])):
            part = self.substitute(arg, {pieces[0]: (Term(number, ()),) if number else ()})
            one = self._taken_apart(replace(item, arg=part, axes=rest), {part: part})
            total = one if total is None else self.compute(_JOIN[item.op], (total, one), item.dtype)
        assert total is not None
        return total

    # --- views --------------------------------------------------------------------------------------------------

    def narrow(self, tensor: Tensor, dim: int, start: int, step: int, size: int, why: str) -> Tensor:
        """Take `size` positions of a dimension from `start`, `step` apart."""
        group = self.axes.leaves(tensor.dims[dim])
        if len(group) == 2 and group[1] in self.axes.fixed and start < step:
            outer, inner = group  # seen as rows of `inner` before: what is wanted may be one column of them
            if (size, step) == (self.axes.hint(outer), self.axes.hint(inner)):
                value = self.substitute(tensor.value, {inner: (Term(start, ()),) if start else ()})
                return replace(tensor, value=value, dims=_put(tensor.dims, dim, (outer,)))
        axis = self._only(tensor, dim, why)
        fresh = self.axes.new(size)
        if start or step != 1:
            self.pinned |= self.axes.sources[axis]
        terms = (Term(start, ()),) if start else ()
        value = self.substitute(tensor.value, {axis: (*terms, Term(step, (), axis=fresh))})
        return replace(tensor, value=value, dims=_put(tensor.dims, dim, (fresh,)))

    def piece(self, tensor: Tensor, dim: int, which: int, pieces: int, why: str) -> Tensor:
        """Take one of `pieces` equal parts of a dimension; the part's size stays a run-time matter."""
        group = self.axes.leaves(tensor.dims[dim])
        if len(group) == 2 and self.axes.hint(group[0]) == pieces and group[0] in self.axes.fixed:
            outer, inner = group
        else:
            axis = self._only(tensor, dim, why)
            outer, inner = self.axes.split(axis, (pieces, self.axes.hint(axis) // pieces))
            self.axes.fixed.add(outer)
        value = self.substitute(tensor.value, {outer: (Term(which, ()),) if which else ()})
        return replace(tensor, value=value, dims=_put(tensor.dims, dim, (inner,)))

    def select(self, tensor: Tensor, dim: int, index: Term, why: str) -> Tensor:
        """Take one position of a dimension, which disappears. A constant position pins the dimension's size."""
        group = self.axes.leaves(tensor.dims[dim])
        value = tensor.value
        if group:
            axis = self._only(tensor, dim, why)
            if index.value is None and index.factor != 0:
                self.pinned |= self.axes.sources[axis]
            value = self.substitute(value, {axis: (index,) if index.factor else ()})
        return replace(tensor, value=value, dims=self.without(tensor.dims, [dim], keep=False))

    def stack(self, tensors: Sequence[Tensor], dim: int, dtype: str, why: str) -> Tensor:
        """Put equal tensors side by side along a new axis at `dim`, outside the dimension already there."""
        aligned, dims = self.align(tensors, why)
        values = [self.operand(t, computed_in(dtype)) for t in aligned]
        axis = self.axes.new(len(tensors))
        self.axes.fixed.add(axis)
        position = self.add(Position(Index((Term(1, (), axis=axis),)), "int64", "full"))
        value = values[-1]
        for number in range(len(values) - 2, -1, -1):
            here = self.compute("eq", (position, self.constant(number, "int64")), "bool")
            value = self.compute("where", (here, values[number], value), self.code[value].dtype)
        return Tensor(value, _put(dims, dim, (axis, *dims[dim])), dtype)

    def substitute(self, value: int, by: Mapping[int, Terms], done: dict[int, int] | None = None) -> int:
        """Return `value` with leaf axes replaced by sums of terms in every load beneath it."""
        done = {} if done is None else done
        if value not in done:
            done[value] = self.add(self._substituted(self.code[value], by, done))
        return done[value]

    def _substituted(self, item: Instruction, by: Mapping[int, Terms], done: dict[int, int]) -> Instruction:
        if isinstance(item, Load):
            return replace(item, index=tuple(self._reindex(i, by, done) for i in item.index))
        if isinstance(item, Position):
            return replace(item, index=self._reindex(item.index, by, done))
        if isinstance(item, Compute):
            return replace(item, args=tuple(self.substitute(a, by, done) for a in item.args))
        if isinstance(item, _Over):
            free = {axis: terms for axis, terms in by.items() if axis not in self.axes.leaves(item.axes)}
            # Beneath a reduction its own axes stay; what was replaced outside may not be reused there.
            return replace(item, arg=self.substitute(item.arg, free, done if len(free) == len(by) else None))
        return item

    def _reindex(self, index: Index, by: Mapping[int, Terms], done: dict[int, int]) -> Index:
        terms: list[Term] = []
        whole = index.whole
        for term in self.spread(index.terms):
            if term.axis is not None and term.axis in by:
                new = by[term.axis]
                whole = whole and self._renames(term.axis, new)
                terms += [replace(t, factor=t.factor * term.factor, sizes=t.sizes + term.sizes) for t in new]
            elif term.value is not None:
                terms.append(replace(term, value=self.substitute(term.value, by, done)))
            else:
                terms.append(term)
        return Index(tuple(terms), whole)

    def _renames(self, axis: int, by: Terms) -> bool:
        """Whether the terms are but another axis of the same size."""
        (other, *more) = by or (Term(0, ()),)
        return other.axis is not None and not more and self.axes.hint(other.axis) == self.axes.hint(axis)

    def spread(self, terms: Sequence[Term]) -> tuple[Term, ...]:
        """Return the terms with every split axis written out in its parts."""
        out: list[Term] = []
        for term in terms:
            sizes = self.axes.leaves(term.sizes)
            if term.axis is None:
                out.append(replace(term, sizes=sizes))
                continue
            leaves = self.axes.leaves((term.axis,))
            out += [replace(term, axis=a, sizes=sizes + leaves[n + 1 :]) for n, a in enumerate(leaves)]
        return tuple(out)

    def _only(self, tensor: Tensor, dim: int, why: str) -> int:
        group = self.axes.leaves(tensor.dims[dim])
        wide = [a for a in group if self.axes.hint(a) != 1] or list(group[:1])
        if len(wide) != 1:
            raise Unsupported(f"{why}: slices a dimension that views or broadcasting made of {len(wide)} others")
        return wide[0]


_JOIN = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}


@dataclass(frozen=True)
class _Over(Reduce):
    """A reduction that still knows its axes."""

    axes: Group = ()


def _indexes(item: Instruction) -> tuple[Index, ...]:
    return item.index if isinstance(item, Load) else (item.index,) if isinstance(item, Position) else ()


def reduced_axes(item: Instruction) -> Group:
    """Return the axes a reduction under construction runs over, () for anything else."""
    return item.axes if isinstance(item, _Over) else ()


def _unlike(left: Group, right: Group) -> tuple[Group, Group]:
    """Return what is left of two groups without the axes they begin and end alike with."""
    begin = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    left, right = left[begin:], right[begin:]
    both = zip(reversed(left), reversed(right), strict=False)
    end = next((n for n, (a, b) in enumerate(both) if a != b), min(len(left), len(right)))
    return left[: len(left) - end], right[: len(right) - end]


def _put(dims: tuple[Group, ...], dim: int, group: Group) -> tuple[Group, ...]:
    return (*dims[:dim], group, *dims[dim + 1 :])
