"""Inputs of a task: captured from the model's own run, kept as storages, rebuilt with their strides and offsets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .capture import CapturedGraph
from .node_ops import is_weight
from .regions import Region
from .task import TensorSpec

# Captured bytes a shape case may keep on disk; larger tensors keep statistics only.
STORAGE_CAP = 64 << 20
# Values of an input that are looked at together: an embedding table in fp64 would take four times its memory.
_BLOCK = 1 << 20


class _Snapshot(fx.Interpreter):
    """Runs a graph and keeps the inputs of chosen regions as they are when the region's first node is reached."""

    def __init__(self, gm: fx.GraphModule, regions: Sequence[Region]) -> None:
        super().__init__(gm)
        self.wanted = {region.nodes[0]: region for region in regions}
        self.pending: dict[fx.Node, torch.Tensor] = {}
        self.found: dict[int, list[torch.Tensor]] = {}
        self.keep = {n for region in regions for n in region.inputs}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n in self.keep:
            self.pending[n] = result
        return result


def snapshot(graph: CapturedGraph, regions: Sequence[Region]) -> list[list[torch.Tensor]]:
    """Return the input tensors of each region, from one run of the graph on its recorded inputs.

    Tensors are the run's own: regions of a graph never mutate (mutations are barriers), so they need no copy here.
    """
    run = _Snapshot(graph.gm, regions)
    run.run(*graph.inputs)
    return [[run.pending[n] for n in region.inputs] for region in regions]


def describe(
    region: Region, names: Sequence[str], tensors: Sequence[torch.Tensor], case: str
) -> tuple[TensorSpec, ...]:
    """Return how each captured input lies in memory, with its statistics and the key of its storage, if kept."""
    specs: list[TensorSpec] = []
    spent = 0
    for i, (node, name, tensor) in enumerate(zip(region.inputs, names, tensors, strict=True)):
        pointer = tensor.untyped_storage().data_ptr()
        twin = next((j for j in range(i) if tensors[j].untyped_storage().data_ptr() == pointer), None)
        size = 0 if twin is not None else tensor.untyped_storage().nbytes()
        kept = spent + size <= STORAGE_CAP
        spent += size if kept else 0
        specs.append(
            TensorSpec(
                name=name,
                shape=tuple(tensor.shape),
                stride=tensor.stride(),
                offset=int(tensor.storage_offset()),
                dtype=str(tensor.dtype).removeprefix("torch."),
                role="weight" if is_weight(node) else "activation",
                storage=f"{case}.{names[twin if twin is not None else i]}" if kept else None,
                alias_of=twin,
                **_statistics(tensor),
            )
        )
    return tuple(specs)


def _statistics(tensor: torch.Tensor) -> dict[str, float | None]:
    """Return low, high, mean and standard deviation of the finite values, in fp64 a block at a time; {} of none."""
    if tensor.is_complex():
        return {}
    low, high, mean, squares, count = math.inf, -math.inf, 0.0, 0.0, 0
    for block in torch.split(tensor.detach().flatten(), _BLOCK):
        values = block.to(torch.float64)
        values = values[torch.isfinite(values)]
        if not values.numel():
            continue
        low, high = min(low, values.min().item()), max(high, values.max().item())
        spread, own = (t.item() for t in torch.var_mean(values, correction=0))
        # What blocks say apart, together: Chan, Golub and LeVeque, 1979.
        seen, apart = count + values.numel(), own - mean
        squares += spread * values.numel() + apart * apart * count * values.numel() / seen
        mean, count = mean + apart * values.numel() / seen, seen
    return {"low": low, "high": high, "mean": mean, "std": math.sqrt(squares / count)} if count else {}


def storages(specs: Sequence[TensorSpec], tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the kept storages as flat uint8 CPU tensors, by key."""
    kept: dict[str, torch.Tensor] = {}
    for spec, tensor in zip(specs, tensors, strict=True):
        if spec.storage is not None and spec.storage not in kept:
            raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            raw.set_(tensor.untyped_storage())
            kept[spec.storage] = raw.cpu().clone()
    return kept


def rebuild(
    specs: Sequence[TensorSpec], kept: dict[str, torch.Tensor], device: str, generator: torch.Generator | None
) -> list[torch.Tensor]:
    """Return fresh tensors as the specs describe them: captured values where kept, else drawn from the statistics.

    With a generator everything is drawn anew, in the recorded shapes, strides, offsets and aliasing.
    """
    made: list[torch.Tensor] = []
    for spec in specs:
        dtype = getattr(torch, spec.dtype)
        if spec.alias_of is not None:
            base = made[spec.alias_of].untyped_storage()
        elif spec.storage is not None and generator is None:
            base = kept[spec.storage].to(device, copy=True).untyped_storage()
        else:
            base = _draw(spec, dtype, generator).to(device).untyped_storage()
        view = torch.empty(0, dtype=dtype, device=device).set_(base, spec.offset, spec.shape, spec.stride)
        made.append(view)
    return made


def _draw(spec: TensorSpec, dtype: torch.dtype, generator: torch.Generator | None) -> torch.Tensor:
    length = spec.offset + 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True))
    length = max(length, 1) if math.prod(spec.shape) else 1
    generator = generator or torch.Generator().manual_seed(0)
    if dtype.is_floating_point or dtype.is_complex:
        mean, std = spec.mean or 0.0, 1.0 if spec.std is None else spec.std
        return (torch.randn(length, generator=generator) * std + mean).to(dtype)
    low, high = int(spec.low or 0), int(spec.high if spec.high is not None else 1)
    return torch.randint(low, high + 1, (length,), generator=generator).to(dtype)
