"""Whether a task can tell a right answer from a trivial one, and how its inputs are perturbed until it can.

A task that zeros, the mean, an input or another call's output would pass proves nothing, whatever is said of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from ...extractor.task import TensorSpec
from .target import Target, misfit


class Asked(Protocol):
    """One input set and what must come out."""

    @property
    def inputs(self) -> tuple[Tensor, ...]: ...

    @property
    def targets(self) -> tuple[Target, ...]: ...


def trivial_answer(samples: Sequence[Asked]) -> str | None:
    """Return the trivial answer that would pass on every sample, output for output; None where there is none."""
    found = []
    for number in range(len(samples[0].targets) if samples else 0):
        name = next((name for name, answers in _answers(samples, number) if _passes(answers, samples, number)), None)
        if name is None:
            return None
        found.append(name)
    return " and ".join(dict.fromkeys(found)) or None


def _passes(answers: Sequence[Tensor | None], samples: Sequence[Asked], number: int) -> bool:
    pairs = [(a, s.targets[number]) for a, s in zip(answers, samples, strict=True) if a is not None]
    return bool(pairs) and all(misfit([answer], [target]) is None for answer, target in pairs)


def _answers(samples: Sequence[Asked], number: int) -> Iterator[tuple[str, list[Tensor | None]]]:
    """Yield trivial answers for one output by name, each with a value for every sample (None: not possible there)."""
    outs = [s.targets[number].reference for s in samples]
    yield "zeros", [torch.zeros_like(out) for out in outs]
    yield "the mean", _means(outs)
    yield "another call's output", [_like(outs[i - 1], out) if i else None for i, out in enumerate(outs)]
    for which in range(len(samples[0].inputs)):
        yield "an input", [_like(s.inputs[which], out) for s, out in zip(samples, outs, strict=True)]


def _means(outs: Sequence[Tensor]) -> list[Tensor | None]:
    """Return outputs full of their own mean (median for integers); of a single value, the mean over all calls."""
    own = [_mean(out) for out in outs]
    single = [mean for mean, out in zip(own, outs, strict=True) if out.numel() == 1]
    pooled = sum(single) / len(single) if single else 0.0
    return [
        torch.full_like(out, pooled if out.numel() == 1 else mean) if len(single) != 1 or out.numel() != 1 else None
        for mean, out in zip(own, outs, strict=True)
    ]


def _mean(out: Tensor) -> float:
    if not out.numel():
        return 0.0
    return out.double().mean().item() if out.is_floating_point() else out.flatten().to(torch.int64).median().item()


def _like(value: Tensor, out: Tensor) -> Tensor | None:
    return value if value.shape == out.shape and value.dtype == out.dtype else None


def _freed(spec: TensorSpec) -> TensorSpec:
    """Return an activation's spec without what made it constant: one value, or the few of a mask of floats."""
    if spec.role == "weight" or spec.low is None or spec.high is None:
        return spec
    whole = spec.dtype.startswith(("int", "uint"))
    return replace(spec, low=min(spec.low, 0.0), high=spec.low + 1) if whole and spec.low == spec.high else spec


def _centred(spec: TensorSpec) -> TensorSpec:
    """Return an activation's spec with values of both signs around zero, whatever was recorded."""
    if spec.role == "weight" or not spec.dtype.startswith(("float", "bfloat")):
        return _freed(spec)
    return replace(spec, low=None, high=None, mean=0.0, std=1.0)


PERTURBATIONS: dict[str, Callable[[TensorSpec], TensorSpec]] = {
    "values that were constant are drawn freely": _freed,
    "activations are drawn around zero, of both signs": _centred,
}
"""What is done to the inputs, in turn, while a trivial answer passes. Drawn without the captured values."""
