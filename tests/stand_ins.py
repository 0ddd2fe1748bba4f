"""Stand-ins for what a search would have found: winners made by hand, from the regions a small model really has."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx

from hotswap.extractor.node_ops import example, is_weight
from hotswap.extractor.reference import reference_source, region_module
from hotswap.extractor.regions import Region, find_regions
from hotswap.integrator.patch import Patch
from hotswap.optimizer.winner import Domain, InputDomain, Winner


def winners_of(model: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Winner]:
    """Return a winner for each memory region that the call meets, its kernel the region's own ops."""
    found: dict[str, Winner] = {}

    def record(gm: fx.GraphModule, _: object) -> Callable[..., Any]:
        found.update((region.fingerprint, by_hand(gm, region)) for region in _memory(gm))
        return gm.forward

    with torch.no_grad():
        torch.compile(model, backend=record)(*args, **kwargs)
    torch._dynamo.reset()
    return list(found.values())


def _memory(gm: fx.GraphModule) -> Iterator[Region]:
    return (region for region in find_regions(gm) if region.kind == "memory")


def by_hand(gm: fx.GraphModule, region: Region) -> Winner:
    """Return a winner of `region` for every size, on the device the region was met on."""
    text = reference_source(region_module(gm, region), "By hand.").replace("def reference(", "def kernel(")
    inputs = tuple(
        InputDomain(
            str(example(n).dtype).removeprefix("torch."),
            example(n).dim(),
            "any",
            "weight" if is_weight(n) else "activation",
        )
        for n in region.inputs
    )
    domain = Domain(inputs, (), (), (), example(region.inputs[0]).device.type, 1)
    name = f"{region.name}-{region.fingerprint[:4]}"
    return Winner(name, region.fingerprint, "kernel", "hand", text, domain, None, False, 1, "by hand")


def write_winners(folder: Path, winners: Iterable[Winner]) -> Path:
    """Write winners as a run directory holds them; return `folder`."""
    for number, winner in enumerate(winners):
        winner.save(folder / "winners" / f"{number:02d}-{winner.task}.json")
    return folder


def with_source(winner: Winner, source: str) -> Winner:
    return dataclasses.replace(winner, source=source, static_weights="prepare" in source)


def kernel_calls(made: Patch) -> int:
    """Return how often kernels have run, all sites together."""
    return sum(e.kernel_calls for e in made.engagement())


def fallback_reasons(made: Patch) -> set[str]:
    """Return why original ops have answered where a kernel stands."""
    return {reason for e in made.engagement() for reason in e.fallback_reasons}
