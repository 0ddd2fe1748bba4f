"""Tell sizes from numbers: which integers of a region are sizes of its inputs, and which sizes vary together.

An integer in a shape position (view, expand, arange, slice, normalized_shape) that equals an input's size
*is* that size: the region means the same at another length. Integers elsewhere (dims, powers, factors) are constants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverloadPacket

from .node_ops import example, is_weight

# Dims that vary together: (input, dim).
Part = tuple[tuple[int, int], ...]
MOST_IN_TRIPLES = 12


@dataclass(frozen=True)
class SizeOf:
    """The size of dim `dim` (counted from the end, negative) of the region's input number `source`."""

    source: int
    dim: int


def symbolize(node: fx.Node, inputs: Sequence[fx.Node]) -> tuple[Any, dict[str, Any]]:
    """Return the args and kwargs of `node` with every size replaced by `SizeOf`."""
    names, varargs = _shape_parameters(node)

    def walk(value: Any, position: bool) -> Any:
        if isinstance(value, slice):
            return slice(*(walk(v, True) for v in (value.start, value.stop, value.step)))
        if isinstance(value, list | tuple):
            return (
                type(value)(walk(v, position) for v in value)
                if type(value) in (list, tuple)
                else tuple(walk(v, position) for v in value)
            )
        return _as_size(value, inputs) if position else value

    args = tuple(walk(a, i >= varargs or i in names) for i, a in enumerate(node.args))
    return args, {k: walk(v, k in names) for k, v in node.kwargs.items()}


def _as_size(value: Any, inputs: Sequence[fx.Node]) -> Any:
    number = example(value) if isinstance(value, fx.Node) else value
    if isinstance(number, torch.Tensor | bool) or not isinstance(number, int | torch.SymInt):
        return value
    wanted = str(number)
    for source, dim, size in _sizes(inputs):
        # Compared as text: asking a SymInt whether it equals something would add a guard to the user's graph.
        if str(size) == wanted and wanted not in ("0", "1"):
            return SizeOf(source, dim)
    return value


def _sizes(inputs: Sequence[fx.Node]) -> Iterator[tuple[int, int, Any]]:
    """Yield (input, dim from the end, size), weights' last dims first: they never change with the batch."""
    ranked = sorted(range(len(inputs)), key=lambda i: not is_weight(inputs[i]))
    for source in ranked:
        shape = example(inputs[source]).shape
        for dim in range(-1, -len(shape) - 1, -1):
            yield source, dim, shape[dim]


def _shape_parameters(node: fx.Node) -> tuple[set[int | str], int]:
    """Return positions and names of the parameters that take sizes, and where size varargs begin.

    Read from the ATen schema of the same name: sizes are `SymInt` there, dims and factors are `int`.
    """
    packet = getattr(torch.ops.aten, str(getattr(node.target, "__name__", node.target)), None)
    found: set[int | str] = set()
    varargs = 1 << 30
    if not isinstance(packet, OpOverloadPacket):  # `operator.le` finds the namespace's own __le__
        return found, varargs
    for overload in packet.overloads():  # type: ignore[no-untyped-call]
        schema = getattr(packet, overload)._schema
        for i, argument in enumerate(schema.arguments):
            # Only the printed schema tells SymInt from int: `real_type` says "int" for both.
            spelled = re.search(rf"(SymInt\S*) {argument.name}\b", str(schema))
            if spelled is not None:
                found.update((i, argument.name))
                if "[" in spelled[1] and node.op == "call_method" and _takes_varargs(node, i):
                    varargs = min(varargs, i)
    return found, varargs


def _takes_varargs(node: fx.Node, position: int) -> bool:
    return len(node.args) > position and not isinstance(node.args[position], list | tuple)


def size_symbols(
    run: Callable[..., Any],
    shapes: Sequence[Sequence[tuple[int, ...]]],
    make: Callable[[Sequence[tuple[int, ...]]], list[torch.Tensor]],
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the sizes that can vary, each as the ((input, dim), ...) that must vary together.

    shapes: for each recorded case the shapes of all inputs. A set of dims is one symbol when its sizes are equal in
    every case and `run` accepts another size there but not in a smaller part of the set. Sizes that nothing
    can vary are left out.
    make: builds inputs (on the meta device, say) of given shapes.
    """
    dims = [(i, d) for i, shape in enumerate(shapes[0]) for d in range(len(shape))]
    classes: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for i, d in dims:
        classes.setdefault(tuple(case[i][d] for case in shapes), []).append((i, d))
    symbols: list[tuple[tuple[int, int], ...]] = []

    def varies(part: Part) -> bool:
        return _varies(run, shapes[0], make, part)

    for members in classes.values():
        left = list(members)
        while left:
            part = next((p for p in _parts(left) if varies(p)), None)
            if part is None:
                break
            part = _smallest(part, varies) if len(part) > 3 else part
            symbols.append(part)
            left = [m for m in left if m not in part]
    return tuple(sorted(symbols))


def _parts(members: Sequence[tuple[int, int]]) -> Iterator[Part]:
    """Yield candidate sets holding the first member, each once: it alone, pairs, triples, those of its dim, all.

    Triples only of a few members: an unrolled loop has dozens of one size, and their triples are thousands.
    """
    first, rest = members[0], tuple(members[1:])
    along = tuple(m for m in rest if m[1] == first[1])
    few = rest if len(members) <= MOST_IN_TRIPLES else ()
    others = [(), *combinations(rest, 1), *combinations(few, 2), along, rest]
    yield from ((first, *each) for each in dict.fromkeys(others))


def _smallest(part: Part, varies: Callable[[Part], bool]) -> Part:
    """Return what of `part` must vary with its first member: halves that need not are dropped, then quarters, on."""
    first, kept = part[0], list(part[1:])
    chunk = len(kept)
    while chunk:
        at = 0
        while at < len(kept):
            less = kept[:at] + kept[at + chunk :]
            if varies((first, *less)):
                kept = less
            else:
                at += chunk
        chunk //= 2
    return (first, *kept)


def _varies(run: Callable[..., Any], shapes: Sequence[tuple[int, ...]], make: Any, part: Part) -> bool:
    for change in (3, 5):  # two changes, so that a size which happens to fit (a multiple, a broadcast) does not pass
        varied = [list(s) for s in shapes]
        for i, d in part:
            varied[i][d] += change
        try:
            run(*make([tuple(s) for s in varied]))
        except Exception:  # the reference may be any PyTorch code and raise anything at sizes it does not take
            return False
    return True
