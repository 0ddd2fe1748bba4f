"""Input values of many families for one task: from the recorded statistics, and those that break sloppy kernels.

Values fill whole storages, so that strides, offsets, expanded dims and aliasing are those of the spec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...extractor.task import TensorSpec
from .arena import DTYPES, as_laid_out, span, storage_bytes

Fill = Callable[[TensorSpec, int, torch.Generator], Tensor]
_HUGE = 1e30


def draw(
    specs: Sequence[TensorSpec],
    captured: Sequence[Tensor] | None,
    family: str,
    generator: torch.Generator,
    known: dict[object, Tensor] | None = None,
) -> list[Tensor]:
    """Return fresh inputs of these specs whose floating activations come from `family`; weights are always random.

    They lie on the generator's device.

    captured: the recorded tensors, for values that only a few numbers are ever taken from (masks); None where not kept.
    known: weights drawn before, taken again where they fit; None draws all anew.
    """
    with generator.device:
        return _drawn(specs, captured, family, generator, known)


def _drawn(
    specs: Sequence[TensorSpec],
    captured: Sequence[Tensor] | None,
    family: str,
    generator: torch.Generator,
    known: dict[object, Tensor] | None,
) -> list[Tensor]:
    made: list[Tensor] = []
    for number, spec in enumerate(specs):
        key = (number, spec.shape, spec.stride, spec.offset)
        if known is not None and spec.role == "weight" and key in known:
            made.append(known[key])
            continue
        if spec.alias_of is not None:
            base = storage_bytes(made[spec.alias_of])
        else:
            length = max(1, _reach(spec), *(_reach(s) for s in specs if s.alias_of == number))
            before = captured[number] if captured else None
            base = _values(spec, before, family, length, generator).to(DTYPES[spec.dtype]).view(torch.uint8)
        made.append(as_laid_out(base, spec.dtype, spec.shape, spec.stride, spec.offset))
        if known is not None and spec.role == "weight":
            known[key] = made[-1]
    return made


def _reach(spec: TensorSpec) -> int:
    return spec.offset + span(spec.shape, spec.stride)


def continuous(spec: TensorSpec, captured: Tensor | None) -> bool:
    """Whether an input takes any value (a mask or a table of a few numbers does not)."""
    if not DTYPES[spec.dtype].is_floating_point:
        return False
    if max(abs(spec.low or 0.0), abs(spec.high or 0.0)) > _HUGE:
        return False
    return (
        captured is None or captured.numel() < 64 or (bool(torch.isfinite(captured).all()) and _few(captured) is None)
    )


def _values(spec: TensorSpec, captured: Tensor | None, family: str, length: int, generator: torch.Generator) -> Tensor:
    dtype = DTYPES[spec.dtype]
    if dtype == torch.bool:
        # Mostly true: a row of a mask with nothing left in it is nan in the reference too, and says little.
        return torch.rand(length, generator=generator) < 0.85
    if not dtype.is_floating_point:
        low, high = int(spec.low or 0), int(spec.high if spec.high is not None else 1)
        return torch.randint(low, max(high, low) + 1, (length,), generator=generator)
    if not continuous(spec, captured):
        few = _few(captured) if captured is not None else None
        few = few if few is not None and few.numel() > 1 else torch.tensor([spec.low or 0.0, spec.high or 0.0])
        return few.to(torch.float64)[torch.randint(0, few.numel(), (length,), generator=generator)]
    if spec.role == "weight":
        mean, std = spec.mean or 0.0, spec.std or 0.0
        # Weights still at their initial ones and zeros would hide a kernel that leaves them out.
        spread = std if std > 1e-3 * abs(mean) else 0.2 * (abs(mean) or 1.0)
        return torch.randn(length, generator=generator).mul_(spread).add_(mean)
    values = (_by_turns if family == BY_TURNS else FAMILIES[family])(spec, length, generator)
    if (spec.low or 0.0) >= 0 and spec.high is not None and spec.high > 0:
        values = values.abs()  # never seen negative: a root or a logarithm may follow
    most = float(torch.finfo(dtype).max) / 64
    return values.clamp(-most, most)


def _few(captured: Tensor) -> Tensor | None:
    sample = captured.flatten()[:: max(1, captured.numel() // 4096)]
    distinct = torch.unique(sample)
    return distinct if distinct.numel() <= 8 < sample.numel() else None


def _scale(spec: TensorSpec) -> tuple[float, float]:
    mean, std = spec.mean or 0.0, 1.0 if spec.std is None else spec.std
    return mean, std if std > 0 else max(abs(mean), 1.0)


def _normal(length: int, generator: torch.Generator) -> Tensor:
    return torch.randn(length, generator=generator, dtype=torch.float64)


def _random(spec: TensorSpec, length: int, generator: torch.Generator) -> Tensor:
    mean, std = _scale(spec)
    return mean + std * _normal(length, generator)


def _heavy(spec: TensorSpec, length: int, generator: torch.Generator) -> Tensor:
    """Student's t with two degrees of freedom: a few values carry a row."""
    mean, std = _scale(spec)
    chi = (_normal(length, generator).square() + _normal(length, generator).square()) / 2
    return mean + std * (_normal(length, generator) / chi.sqrt().clamp(min=1e-3)).clamp(-300, 300)


def _mixed(spec: TensorSpec, length: int, generator: torch.Generator) -> Tensor:
    """Rows whose scales differ by up to a million."""
    _, std = _scale(spec)
    row = max(spec.shape[-1], 1) if spec.shape else 1
    scales = torch.pow(10.0, torch.rand(length // row + 1, generator=generator, dtype=torch.float64) * 6 - 4)
    return std * scales.repeat_interleave(row)[:length] * _normal(length, generator)


def _offset(spec: TensorSpec, length: int, generator: torch.Generator) -> Tensor:
    """A mean far above the spread: the square of the mean minus the mean of squares cancels."""
    _, std = _scale(spec)
    return std * (300.0 + _normal(length, generator))


def _outliers(spec: TensorSpec, length: int, generator: torch.Generator) -> Tensor:
    """A few channels a thousand times the rest, as language models have."""
    row = max(spec.shape[-1], 1) if spec.shape else 1
    channel = torch.arange(length) % row
    loud = torch.isin(channel, torch.randint(0, row, (max(1, row // 100),), generator=generator))
    return _random(spec, length, generator) * torch.where(loud, 1000.0, 1.0)


def _ties(spec: TensorSpec, length: int, generator: torch.Generator) -> Tensor:
    """Five values only, both zeros among them."""
    _, std = _scale(spec)
    few = torch.tensor([-1.0, -0.0, 0.0, 0.5, 1.0], dtype=torch.float64) * std
    return few[torch.randint(0, 5, (length,), generator=generator)]


def _tiny(spec: TensorSpec, length: int, generator: torch.Generator) -> Tensor:
    """Subnormals and signed zeros between ordinary values."""
    small = float(torch.finfo(DTYPES[spec.dtype]).smallest_normal) if spec.dtype != "float64" else 1e-300
    kind = torch.randint(0, 4, (length,), generator=generator)
    values = _random(spec, length, generator)
    values = torch.where(kind == 0, values * small, values)
    return torch.where(kind == 1, torch.copysign(torch.zeros(()), values), values)


def _constant(spec: TensorSpec, length: int, generator: torch.Generator) -> Tensor:
    """Every row one value."""
    row = max(spec.shape[-1], 1) if spec.shape else 1
    return _random(spec, length // row + 1, generator).repeat_interleave(row)[:length]


def _by_turns(spec: TensorSpec, length: int, generator: torch.Generator) -> Tensor:
    """Some rows of every family, one after another; of fewer rows than families, pieces of rows."""
    row = max(spec.shape[-1], 1) if spec.shape else 1
    many = len(FAMILIES)
    each = -(-length // many) if length < many * row else -(-length // (many * row)) * row
    return torch.cat([fill(spec, each, generator).to(torch.float64) for fill in FAMILIES.values()])[:length]


BY_TURNS = "every family by turns"
FAMILIES: dict[str, Fill] = {
    "random": _random,
    "heavy tails": _heavy,
    "mixed scales": _mixed,
    "large offset": _offset,
    "outlier channels": _outliers,
    "ties": _ties,
    "subnormals and signed zeros": _tiny,
    "constant rows": _constant,
}
