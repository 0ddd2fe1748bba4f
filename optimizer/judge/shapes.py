"""The shapes next to the recorded ones: each size symbol at 1, one off, odd, prime; and other layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...extractor.task import Task, TensorSpec
from .arena import dense_strides, span

_LAYOUTS = ("strided", "offset", "transposed")


@dataclass(frozen=True)
class Variant:
    """Specs of one set of inputs to try. sizes: the value of each size symbol. layout: of the activations."""

    name: str
    specs: tuple[TensorSpec, ...]
    sizes: tuple[int, ...]
    layout: str


def recorded(task: Task) -> list[Variant]:
    """Return the recorded cases as they were."""
    return [Variant(c.name, c.inputs, _sizes(task, c.inputs), "recorded") for c in task.cases]


def ground(task: Task, accepts: Callable[[tuple[TensorSpec, ...]], bool]) -> tuple[int, ...]:
    """Return sizes of the symbols of the smallest recorded case, each as small as the reference takes it.

    Neighbours stand on these: sizes vary independently, and many variants must cost little.
    """
    base = _smallest(task)
    sizes = _sizes(task, base)
    for number, size in enumerate(sizes):
        trial = (*sizes[:number], min(size, 3 + 2 * number), *sizes[number + 1 :])
        if trial != sizes and accepts(_resize(task, base, trial)):
            sizes = trial
    return sizes


def neighbours(task: Task, small: tuple[int, ...]) -> list[Variant]:
    """Return variants of the smallest recorded case: one size symbol changed at a time, then other layouts, then empty.

    small: the sizes of the symbols that a variant is not about.
    """
    base = _smallest(task)
    tried: set[tuple[int, ...]] = set()
    found: list[Variant] = []
    for number, size in enumerate(_sizes(task, base)):
        for other in (1, size - 1, size, size + 1, 7, 67):
            sizes = (*small[:number], other, *small[number + 1 :])
            if other >= 1 and sizes not in tried:
                tried.add(sizes)
                found.append(Variant(f"sizes {list(sizes)}", _resize(task, base, sizes), sizes, "recorded"))
    specs = _resize(task, base, small)
    found += [Variant(f"{name} inputs", _relaid(specs, name), small, name) for name in _LAYOUTS]
    if small:
        empty = (0, *small[1:])
        found.append(Variant("empty", _resize(task, base, empty), empty, "recorded"))
    return found


def shrunk(task: Task, small: tuple[int, ...], most: int) -> Variant:
    """Return the smallest recorded case, leading symbols made small until it has at most `most` elements."""
    base = _smallest(task)
    sizes = _sizes(task, base)
    for number in range(len(sizes)):
        if elements(_resize(task, base, sizes)) <= most:
            break
        sizes = (*small[: number + 1], *sizes[number + 1 :])
    return Variant(f"sizes {list(sizes)}", _resize(task, base, sizes), sizes, "recorded")


def elements(specs: Sequence[TensorSpec]) -> int:
    """Return how many elements the inputs hold, gaps included."""
    return sum(span(s.shape, s.stride) for s in specs)


def _smallest(task: Task) -> tuple[TensorSpec, ...]:
    return min((c.inputs for c in task.cases), key=elements)


def _sizes(task: Task, specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    return tuple(specs[places[0][0]].shape[places[0][1]] for places in task.size_symbols)


def _resize(task: Task, specs: Sequence[TensorSpec], sizes: Sequence[int]) -> tuple[TensorSpec, ...]:
    made = []
    for number, spec in enumerate(specs):
        shape = list(spec.shape)
        for places, size in zip(task.size_symbols, sizes, strict=True):
            for where, dim in places:
                if where == number:
                    shape[dim] = size
        if tuple(shape) == spec.shape:
            made.append(spec)
            continue
        order = sorted(range(len(shape)), key=lambda d: (-spec.stride[d], d))
        strides = dense_strides(shape, order)
        # A dim that was expanded stays expanded: it holds one value however long it is.
        strides = tuple(
            0 if old == 0 and n > 1 else new for old, new, n in zip(spec.stride, strides, spec.shape, strict=True)
        )
        made.append(replace(spec, shape=tuple(shape), stride=strides, storage=None))
    return tuple(made)


def _relaid(specs: Sequence[TensorSpec], layout: str) -> tuple[TensorSpec, ...]:
    return tuple(_relay(s, layout) if s.role == "activation" and s.alias_of is None and s.shape else s for s in specs)


def _relay(spec: TensorSpec, layout: str) -> TensorSpec:
    dense = dense_strides(spec.shape)
    if layout == "offset":
        return replace(spec, stride=dense, offset=spec.offset + 3, storage=None)
    if layout == "transposed" and len(spec.shape) > 1:
        order = [*range(len(spec.shape) - 2), len(spec.shape) - 1, len(spec.shape) - 2]
        return replace(spec, stride=dense_strides(spec.shape, order), storage=None)
    return replace(spec, stride=tuple(2 * s for s in dense), offset=spec.offset + 1, storage=None)
