"""Axes of an iteration space while it is discovered: born of input dimensions, united by broadcasts, split by views.

A dimension of a traced tensor is a group of axes, outermost first; the empty group has size 1. No size is baked in: an
axis knows the size it had while tracing only to decide which groups can be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Group = tuple[int, ...]


class Unsupported(Exception):
    """The region is not one loop nest; the message names the op and why."""


class AxisTable:
    """All axes met so far, by number."""

    def __init__(self) -> None:
        self._hint: list[int] = []
        self._parent: list[int] = []
        self._parts: dict[int, Group] = {}
        self.sources: list[set[tuple[int, int]]] = []
        self.fixed: set[int] = set()

    def new(self, hint: int, source: tuple[int, int] | None = None) -> int:
        self._hint.append(hint)
        self._parent.append(len(self._parent))
        self.sources.append({source} if source else set())
        return len(self._hint) - 1

    def again(self, axis: int) -> int:
        """Return a new axis of the same size, known from the same dimensions."""
        fresh = self.new(self.hint(axis))
        self.sources[fresh] |= self.sources[axis]
        return fresh

    def root(self, axis: int) -> int:
        while self._parent[axis] != axis:
            axis = self._parent[axis]
        return axis

    def hint(self, axis: int) -> int:
        return self._hint[axis]

    def size(self, group: Sequence[int]) -> int:
        return prod(self._hint[a] for a in group)

    def leaves(self, group: Sequence[int]) -> Group:
        """Return the group in axes that are not split any further."""
        out: list[int] = []
        for axis in group:
            head = self.root(axis)
            out.extend(self.leaves(self._parts[head]) if head in self._parts else (head,))
        return tuple(out)

    def parts(self, axis: int) -> Group | None:
        return self._parts.get(self.root(axis))

    def splits(self) -> list[tuple[int, Group]]:
        """Return every split axis with its parts, in the order they were split."""
        return list(self._parts.items())

    def split(self, axis: int, sizes: Sequence[int]) -> Group:
        """Split a leaf into new axes of the given sizes, outermost first."""
        parts = tuple(self.new(s) for s in sizes)
        self._parts[self.root(axis)] = parts
        return parts

    def unite(self, left: Group, right: Group, why: str) -> Group:
        """Make two groups of equal size the same axes, splitting where one is finer; return the common group."""
        first, second = self._refine(self.leaves(left), self.leaves(right), why)
        for a, b in zip(first, second, strict=True):
            self._merge(a, b)
        return self.leaves(first)

    def _merge(self, a: int, b: int) -> None:
        a, b = self.root(a), self.root(b)
        if a == b:
            return
        keep, drop = (a, b) if a < b else (b, a)
        self._parent[drop] = keep
        self.sources[keep] |= self.sources[drop]
        if drop in self.fixed:
            self.fixed.add(keep)

    def _refine(self, left: Group, right: Group, why: str) -> tuple[Group, Group]:
        a, b = list(left), list(right)
        i = 0
        while i < len(a) and i < len(b):
            if a[i] == b[i]:
                i += 1
                continue
            x, y = self.hint(a[i]), self.hint(b[i])
            if x == 1 and y != 1:
                b.insert(i, self.new(1))
            elif y == 1 and x != 1:
                a.insert(i, self.new(1))
            elif x > y:
                a[i : i + 1] = self._cut(a[i], y, why)
            elif y > x:
                b[i : i + 1] = self._cut(b[i], x, why)
            i += 1
        while len(a) < len(b):
            a.append(self.new(1))
        while len(b) < len(a):
            b.append(self.new(1))
        return tuple(a), tuple(b)

    def _cut(self, axis: int, outer: int, why: str) -> Group:
        hint = self.hint(axis)
        if outer == 0 or hint % outer:
            raise Unsupported(f"{why}: a dimension of {hint} cannot be cut at {outer}")
        return self.split(axis, (outer, hint // outer))

    def regroup(self, groups: Sequence[Group], shape: Sequence[int], why: str) -> list[Group]:
        """Return the groups of a tensor after `view(shape)`, splitting axes where a dimension is taken apart."""
        flat = [a for g in groups for a in self.leaves(g)]
        out: list[Group] = []
        for size in shape:
            group, have = [], 1
            if size == 1 and flat and self.hint(flat[0]) == 1:
                group.append(flat.pop(0))
            while have < size:
                if not flat:
                    raise Unsupported(f"{why}: sizes do not match")
                axis, need = flat.pop(0), size // have
                if size % have or (self.hint(axis) > need and self.hint(axis) % need):
                    raise Unsupported(f"{why}: dimensions are cut across, not along")
                if self.hint(axis) > need:
                    axis, rest = self.split(axis, (need, self.hint(axis) // need))
                    flat.insert(0, rest)
                group.append(axis)
                have *= self.hint(axis)
            out.append(tuple(group))
        return out
