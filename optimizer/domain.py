"""Say where a kernel was verified: dtypes, ranks and the sizes it was tried at."""

from __future__ import annotations

from ..extractor.task import ShapeCase, Task
from .judge.shapes import neighbours, recorded
from .winner import Domain, InputDomain


def verified_domain(task: Task, threads: int) -> Domain:
    """Return the domain of a kernel accepted for `task`: the recorded shapes, and those the judge tries beside them.

    Strides need not be named: the judge tries strided, offset and dense inputs, and a kernel that needs dense ones
    declares it in its file. Empty inputs are left outside: nothing to gain, and not every reference accepts them.
    """
    symbolic = {place for symbol in task.size_symbols for place in symbol}
    first = task.cases[0]
    tried = [variant.sizes for variant in (*recorded(task), *neighbours(task)) if 0 not in variant.sizes]
    return Domain(
        inputs=tuple(InputDomain(spec.dtype, len(spec.shape), "any", spec.role) for spec in first.inputs),
        symbols=task.size_symbols,
        sizes=tuple((min(sizes), max(sizes)) for sizes in zip(*tried, strict=True)),
        fixed=tuple(_fixed(first, symbolic)),
        device=task.device,
        threads=threads,
    )


def _fixed(case: ShapeCase, symbolic: set[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return [
        (position, dim, size)
        for position, spec in enumerate(case.inputs)
        for dim, size in enumerate(spec.shape)
        if (position, dim) not in symbolic
    ]
