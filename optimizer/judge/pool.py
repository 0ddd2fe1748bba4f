"""The input sets that timed calls run on: few sources, many sets, contents that never come twice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import arena
from .bank import Bank, Sample
from .target import Target

HARD = -1
"""The source of a set that holds `Pool.hard`."""


@dataclass(frozen=True)
class Hard:
    """Hard values at a case's shape, for sprints that are not timed: inputs, what must come out, weights changed so."""

    inputs: tuple[Tensor, ...]
    targets: tuple[Target, ...]
    change: arena.Reweighting | None


@dataclass(frozen=True)
class Pool:
    """Input sets of one case. sets: how many a worker is given, made of the few `sources` times a factor.

    stride: bytes from one set to the next; layout: of the first. fixed, scaled: by storage, whether it is a weight's
    and the dtype whose values take the factor (None: copied as they are); weights: the same for a weight's. hard: what
    is given for a candidate that declared its weights static (True) or not, made when first asked for; None: too large.
    """

    sample: Sample
    weight: float
    layout: arena.Layout
    stride: int
    fixed: tuple[bool, ...]
    scaled: tuple[str | None, ...]
    weights: tuple[str | None, ...]
    sources: tuple[list[Tensor], ...]
    sets: int
    hard: Callable[[bool], Hard | None]

    def raw(self, which: int) -> list[Tensor]:
        """Return the bytes of a source's storages, in the layout's order."""
        return self.raw_of(self.sources[which])

    def raw_of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the bytes of the storages of some inputs, in the layout's order."""
        rows = [row[0] for row in self.layout["tensors"]]
        return [arena.storage_bytes(tensors[rows.index(n)]) for n in range(len(self.layout["storages"]))]

    @property
    def moved_bytes(self) -> int:
        """Bytes a kernel must at least read and write in one call."""
        read = sum(
            arena.span(t.shape, t.stride()) * t.element_size() if 0 not in t.stride() else 0 for t in self.sample.inputs
        )
        return read + sum(t.reference.numel() * t.reference.element_size() for t in self.sample.targets)


def pool_bytes_on(device: str) -> int:
    """Return bytes of timed input sets for one worker: a device has far more memory than its caches."""
    return 256 << 20 if device == "cpu" else min(6 << 30, torch.cuda.mem_get_info()[0] // 12)


def make_pool(bank: Bank, sample: Sample, weight: float, most_bytes: int) -> Pool:
    """Return the pool of one recorded case: as many sets as fit, at least six, at most 384 (1024 on a device)."""
    is_weight = [s.role == "weight" for s in sample.variant.specs]

    def source() -> list[Tensor]:
        return arena.with_weights(bank.draw(sample.variant, "random"), sample.inputs, is_weight)

    first = source()
    layout, in_bytes = arena.plan(first)
    rows = [row[0] for row in layout["tensors"]]
    storages = layout["storages"]
    fixed = tuple(all(w for w, r in zip(is_weight, rows, strict=True) if r == n) for n in range(len(storages)))
    scaled = tuple(None if f else _scaled(bank, sample, rows, n) for n, f in enumerate(fixed))
    weights = tuple(_dtype(sample, rows, n) if f else None for n, f in enumerate(fixed))
    moving = sum(n for (_, n), f in zip(storages, fixed, strict=True) if not f)
    outputs = sum(t.reference.numel() * t.reference.element_size() for t in sample.targets)
    # A sprint must be long beside what starting it takes, which on a device is a launch and a wait.
    sets = max(6, min(384 if bank.task.device == "cpu" else 1024, most_bytes // max(moving + outputs, 1)))
    # Contents come from few sources times a random factor; without anything to scale, from as many as are used.
    count = 4 if any(scaled) else max(4, min(sets, (16 << 20) // max(moving, 1)))
    stride = -(-in_bytes // 4096) * 4096
    sources = [first, *(source() for _ in range(count - 1))]
    mixed = next(m for s, m in zip(bank.recorded, bank.mixed, strict=True) if s is sample)
    hard = functools.cache(functools.partial(_hard, bank, mixed, layout, weights))
    return Pool(sample, weight, layout, stride, fixed, scaled, weights, tuple(sources), sets, hard)


def _hard(
    bank: Bank, base: Sample | None, layout: arena.Layout, weights: Sequence[str | None], packed: bool
) -> Hard | None:
    """Return hard values; where weights were not declared static, some of them are others than the task's."""
    if base is None:
        return None
    if packed or not any(weights):
        return Hard(base.inputs, base.targets, None)
    by, start, share = torch.rand(3, generator=bank.generator, device=bank.task.device).tolist()
    # From a little to half: what looks at few of them sees no change.
    change = arena.Reweighting(0.6 + 0.2 * by, start, 0.5 ** (1 + 5 * share))
    changed: dict[int, Tensor] = {}
    inputs = []
    for tensor, row in zip(base.inputs, layout["tensors"], strict=True):
        if row[0] not in changed:
            raw = arena.storage_bytes(tensor)
            changed[row[0]] = raw
            if weights[row[0]]:
                changed[row[0]] = raw.clone()
                arena.reweigh(changed[row[0]], raw, weights[row[0]], change)
        inputs.append(arena.as_laid_out(changed[row[0]], *row[1:]))
    if not bank.takes(inputs):
        return Hard(base.inputs, base.targets, None)
    return Hard(tuple(inputs), bank.targets(base.variant, inputs), change)


def _scaled(bank: Bank, sample: Sample, rows: Sequence[int], storage: int) -> str | None:
    users = [i for i, row in enumerate(rows) if row == storage]
    return _dtype(sample, rows, storage) if all(bank.continuous(i) for i in users) else None


def _dtype(sample: Sample, rows: Sequence[int], storage: int) -> str | None:
    """Return the dtype of a storage's values where all its users agree on it and it is a floating one, else None."""
    dtypes = {s.dtype for s, row in zip(sample.variant.specs, rows, strict=True) if row == storage}
    floating = len(dtypes) == 1 and all(arena.DTYPES[d].is_floating_point for d in dtypes)
    return dtypes.pop() if floating else None


def contents(pool: Pool, which: int, by: float, change: arena.Reweighting | None = None) -> list[Tensor]:
    """Return the inputs a worker made of source set `which`, factor `by` and changed weights, bit for bit."""
    made: dict[int, Tensor] = {}
    tensors = []
    for tensor, row in zip(pool.sources[which], pool.layout["tensors"], strict=True):
        if row[0] not in made:
            raw = arena.storage_bytes(tensor)
            room = raw if pool.fixed[row[0]] and change is None else torch.empty_like(raw)
            if not pool.fixed[row[0]]:
                arena.refill(room, raw, pool.scaled[row[0]], by)
            elif change is not None:
                arena.reweigh(room, raw, pool.weights[row[0]], change)
            made[row[0]] = room
        tensors.append(arena.as_laid_out(made[row[0]], *row[1:]))
    return tensors


def cache_state(pool: Pool, cache_bytes: int) -> str:
    """Say in which caches the inputs of a timed call can still be."""
    size = pool.sets * sum(n for (_, n), f in zip(pool.layout["storages"], pool.fixed, strict=True) if not f)
    state = "cold" if cache_bytes and size >= 2 * cache_bytes else "warm in the last-level cache at most"
    return f"{state}: {pool.sets} input sets of together {size >> 20} MiB, last-level cache {cache_bytes >> 20} MiB"
