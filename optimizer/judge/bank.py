"""What a task's candidates are judged by: input sets with their targets, computed once for all candidates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...extractor.load_task import LoadedTask, load_task
from ...extractor.task import TensorSpec
from ...models.errors import InputError
from . import arena
from .acceptance import PERTURBATIONS, trivial_answer
from .oracle import Oracle
from .shapes import Variant, elements, ground, neighbours, recorded, shrunk
from .target import Target, targets
from .values import BY_TURNS, FAMILIES, continuous, draw

logger = logging.getLogger(__name__)

# Elements of one input set up to which value families are tried at the recorded shape; beyond, sizes shrink.
_LARGE = 1 << 17
# Elements of one input set up to which all families by turns are tried at the recorded shape itself.
_MIXED = 10 << 20
# The same for the samples that are fresh in every value, which hold inputs, oracle and bound three times.
_FRESH = 1 << 24


@dataclass(frozen=True)
class Sample:
    """One input set and what must come out. is_view: which outputs the reference itself returns as views of inputs."""

    name: str
    variant: Variant
    inputs: tuple[Tensor, ...]
    layout: arena.Layout
    in_bytes: int
    targets: tuple[Target, ...]
    is_view: tuple[bool, ...]

    @property
    def out_bytes(self) -> int:
        return sum(t.reference.numel() * t.reference.element_size() * 4 + 4096 for t in self.targets)


class Bank:
    """A task loaded for judging. Reference and oracle run here, in the judge's own process."""

    def __init__(self, task: LoadedTask | Path, seed: int) -> None:
        self.loaded = loaded = load_task(task) if isinstance(task, Path) else task
        self.task, folder = loaded.task, loaded.folder
        self.generator = torch.Generator(self.task.device).manual_seed(seed)
        self.refused: list[str] = []
        self.notes: list[str] = []
        self._weights: dict[object, Tensor] = {}
        self._oracles: dict[tuple[object, ...], Oracle] = {}
        cases = recorded(self.task)
        self.captured = [self._captured(i) for i in range(len(cases))]
        first = [self._sample(f"{v.name}, captured", v, self.loaded.inputs(i)) for i, v in enumerate(cases)]
        self.recorded: list[Sample] = [s for s in first if s is not None]
        if len(self.recorded) < len(cases):
            raise InputError(
                f"{folder}: task refused: its reference raises on its own recorded inputs ({self.refused[0]})"
            )
        self._small = ground(self.task, self._accepts)
        self._place = shrunk(self.task, self._small, _LARGE)
        near = [self._drawn(v.name, v, "random") for v in neighbours(self.task, self._small)]
        self.neighbours: list[Sample] = [s for s in near if s is not None]
        self.families = self._families()
        self.fresh = self._fresh(cases[0])
        self.mixed = [self._mixed(s) for s in self.recorded]
        """Hard values at each recorded shape, its own weights with them; None where that takes much memory."""
        self.notes += self._ignored(*self._prove())

    @property
    def in_bytes(self) -> int:
        return max(s.in_bytes for s in self.all)

    @property
    def out_bytes(self) -> int:
        return max(s.out_bytes for s in self.all)

    @property
    def all(self) -> list[Sample]:
        """Every input set, in the order in which stages use them."""
        return [*self.recorded, *self.neighbours, *self.families, *self.fresh, *(s for s in self.mixed if s)]

    def targets(self, variant: Variant, inputs: Sequence[Tensor]) -> tuple[Target, ...]:
        """Return what must come out for these inputs; the graph is traced once for each set of shapes and layouts."""
        with torch.no_grad():
            return self._targets(variant, inputs, self.loaded.reference(*inputs))

    def _targets(self, variant: Variant, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[Target, ...]:
        key = _shape_key(variant)
        if key not in self._oracles:
            self._oracles[key] = Oracle(self.loaded.reference, inputs, self.task.size_symbols)
        return targets(outputs, self._oracles[key], inputs, self.generator)

    def timed_targets(self, sample: Sample, inputs: Sequence[Tensor]) -> tuple[Target, ...]:
        """Return what must come out for other values at a sample's shape, by the sample's relative bounds: cheaper."""
        exacts = self._oracles[_shape_key(sample.variant)](inputs)
        if any(t.exact is None for t in sample.targets):
            return self.targets(sample.variant, inputs)
        return tuple(t.at(exact) for t, exact in zip(sample.targets, exacts, strict=True))

    def draw(self, variant: Variant, family: str) -> list[Tensor]:
        return draw(variant.specs, self.captured[0], family, self.generator)

    def continuous(self, number: int) -> bool:
        """Whether an input is an activation that may take any value."""
        spec = self.task.cases[0].inputs[number]
        return spec.role == "activation" and continuous(spec, self.captured[0][number] if self.captured[0] else None)

    def _captured(self, case: int) -> list[Tensor] | None:
        return self.loaded.inputs(case) if all(s.storage for s in self.task.cases[case].inputs) else None

    def _families(self) -> list[Sample]:
        """Values that break sloppy kernels, at the smallest recorded shape, or a smaller one where that is large."""
        floating = any(self.continuous(i) for i in range(len(self.task.inputs)))
        names = list(FAMILIES) if floating else ["random"]
        made = [self._drawn(family, self._place, family) for family in names]
        return [s for s in made if s is not None]

    def _fresh(self, variant: Variant) -> list[Sample]:
        """Return three samples at a recorded shape: the second has the first's weights, the third neither.

        Where it takes much memory they are smaller: what is remembered from call to call shows at any size.
        """
        if elements(variant.specs) > _FRESH:
            variant = shrunk(self.task, self._small, _FRESH)
        one, other = self.draw(variant, "random"), self.draw(variant, "random")
        mixed = arena.with_weights(other, one, [s.role == "weight" for s in variant.specs])
        made = [self._sample(f"{variant.name}, fresh", variant, inputs) for inputs in (one, mixed, other)]
        return [s for s in made if s is not None]

    def _mixed(self, sample: Sample) -> Sample | None:
        """Return values of every family at a recorded shape: kernels may take another way at large shapes."""
        if elements(sample.variant.specs) > _MIXED:
            return None
        is_weight = [s.role == "weight" for s in sample.variant.specs]
        inputs = arena.with_weights(self.draw(sample.variant, BY_TURNS), sample.inputs, is_weight)
        return self._sample(f"{sample.variant.name}, {BY_TURNS}", sample.variant, inputs)

    def _accepts(self, specs: tuple[TensorSpec, ...]) -> bool:
        return self.takes(draw(specs, self.captured[0], "random", self.generator, self._weights))

    def takes(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the reference raises nothing on these inputs."""
        try:
            with torch.no_grad():
                self.loaded.reference(*inputs)
        except Exception:  # the reference is the user's code: sizes that mean nothing to it raise anything
            return False
        return True

    def _drawn(self, name: str, variant: Variant, family: str) -> Sample | None:
        """Return a sample of fresh activations. Weights are drawn once: a large table would cost too much."""
        inputs = draw(variant.specs, self.captured[0], family, self.generator, self._weights)
        return self._sample(name, variant, inputs)

    def _sample(self, name: str, variant: Variant, inputs: Sequence[Tensor]) -> Sample | None:
        """Return the sample, None (and a line in `refused`) where the reference itself does not take these inputs."""
        before = [arena.storage_bytes(t).clone() for t in inputs]
        try:
            with torch.no_grad():
                outputs = self.loaded.reference(*inputs)
                wanted = self._targets(variant, inputs, outputs)
        except Exception as error:  # the reference is the user's code, and a neighbouring shape may mean nothing to it
            self.refused.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            logger.info("the reference refuses %s", self.refused[-1])
            return None
        if any(not torch.equal(arena.storage_bytes(t), b) for t, b in zip(inputs, before, strict=True)):
            raise InputError(
                f"{self.loaded.folder}: task refused: its reference changes its inputs, which no kernel may"
            )
        layout, in_bytes = arena.plan(inputs)
        given = {t.untyped_storage().data_ptr() for t in inputs if t.numel()}
        views = tuple(o.untyped_storage().data_ptr() in given for o in outputs)
        return Sample(name, variant, tuple(inputs), layout, in_bytes, wanted, views)

    def _prove(self) -> tuple[Variant, list[Tensor] | None]:
        """Perturb the inputs until no trivial answer passes on all of them; refuse the task where one always does.

        Returns what the inputs that prove it are drawn from: specs, and captured values where they were not perturbed.
        """
        place, before = self._place, self.captured[0]
        passing = trivial_answer([*self.families, *self.fresh])
        for what, changed in PERTURBATIONS.items():
            if passing is None:
                break
            variant = replace(self._place, specs=tuple(changed(s) for s in self._place.specs))
            made = [self._perturbed(f"perturbed, {family}", variant, family) for family in FAMILIES]
            if not any(made):
                continue
            place, before = variant, None
            self.families += [s for s in made if s is not None]
            self.notes.append(f"{passing} as the answer would pass on the recorded kind of inputs: {what}")
            passing = trivial_answer([*self.families, *self.fresh])
        if passing is not None:
            raise InputError(
                f"{self.loaded.folder}: task refused: {passing} as the answer would pass on all "
                f"{len(self.families) + len(self.fresh)} input sets, perturbed ones too, so no verdict would mean "
                "anything; record it with inputs that matter"
            )
        return place, before

    def _perturbed(self, name: str, variant: Variant, family: str) -> Sample | None:
        inputs = draw(variant.specs, None, family, self.generator, self._weights)
        # An index out of range is an error on a CPU, but ends every later call on a GPU: it is tried there first.
        if self.task.device != "cpu" and not self.takes([t.cpu() for t in inputs]):
            self.refused.append(f"{name}: not taken on the CPU")
            return None
        return self._sample(name, variant, inputs)

    def _ignored(self, place: Variant, before: list[Tensor] | None) -> list[str]:
        """Return a note for each input that, drawn again alone, changes nothing: a candidate need not look at it."""
        specs = place.specs
        one = draw(specs, before, "random", self.generator, self._weights)
        shared = {s.alias_of for s in specs} | {i for i, s in enumerate(specs) if s.alias_of is not None}
        found = []
        for number, name in enumerate(self.task.inputs):
            if number in shared:
                continue
            other = draw(specs[number : number + 1], before and before[number : number + 1], "random", self.generator)
            mixed = [*one[:number], *other, *one[number + 1 :]]
            if self.takes(one) and self.takes(mixed) and _same(self.loaded.reference, one, mixed):
                found.append(f"the output is the same whatever {name} holds")
        return found


def _same(reference: Callable[..., tuple[Tensor, ...]], one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    with torch.no_grad():
        pairs = zip(reference(*one), reference(*other), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)


def _shape_key(variant: Variant) -> tuple[object, ...]:
    return tuple((s.shape, s.stride, s.dtype) for s in variant.specs)
