"""Say where a kernel was verified: dtypes, ranks and the sizes it was tried at."""

from __future__ import annotations

from collections.abc import Sequence

from ..extractor.task import ShapeCase, Task
from .winner import Domain, InputDomain

Shapes = Sequence[tuple[int, ...]]


def verified_domain(task: Task, tried: Sequence[Shapes], threads: int) -> Domain:
    """Return the domain of a kernel accepted for `task`: from the least to the greatest of each size it was tried at.

    tried: input shapes of the judge's, beyond the recorded ones. Strides need not be named: the judge tries strided,
    offset and dense inputs, and a kernel that needs dense ones declares it in its file. Empty inputs are left outside:
    nothing to gain there, and not every reference accepts them.
    """
    symbolic = {place for symbol in task.size_symbols for place in symbol}
    first = task.cases[0]
    shapes = [*([spec.shape for spec in case.inputs] for case in task.cases), *tried]
    return Domain(
        inputs=tuple(InputDomain(spec.dtype, len(spec.shape), "any", spec.role) for spec in first.inputs),
        symbols=task.size_symbols,
        sizes=tuple(_range(symbol[0], shapes) for symbol in task.size_symbols),
        fixed=tuple(_fixed(first, symbolic)),
        device=task.device,
        threads=threads,
    )


def _range(place: tuple[int, int], shapes: Sequence[Shapes]) -> tuple[int, int]:
    position, dim = place
    sizes = [size for shape in shapes if (size := shape[position][dim])]
    return min(sizes), max(sizes)


def _fixed(case: ShapeCase, symbolic: set[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return [
        (position, dim, size)
        for position, spec in enumerate(case.inputs)
        for dim, size in enumerate(spec.shape)
        if (position, dim) not in symbolic
    ]
