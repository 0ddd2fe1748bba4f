"""Fixtures: runs whose winners are hand-made, from the regions a small model really has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from hotswap.extractor.node_ops import example, is_weight
from hotswap.extractor.reference import reference_source, region_module
from hotswap.extractor.regions import find_regions
from hotswap.optimizer.winner import Domain, InputDomain, Winner

MakeWinners = Callable[..., list[Winner]]
WriteRun = Callable[[list[Winner]], Path]


@pytest.fixture
def make_winners() -> MakeWinners:
    """Give a function that, for a call, returns one winner a memory region, its kernel the region's own ops."""

    def make(model: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Winner]:
        found: dict[str, Winner] = {}

        def record(gm: fx.GraphModule, _: object) -> Callable[..., Any]:
            for region in find_regions(gm):
                if region.kind != "memory":
                    continue
                text = reference_source(region_module(gm, region), "By hand.").replace("def reference(", "def kernel(")
                domain = Domain(
                    tuple(
                        InputDomain(
                            str(example(n).dtype).removeprefix("torch."),
                            example(n).dim(),
                            "any",
                            "weight" if is_weight(n) else "activation",
                        )
                        for n in region.inputs
                    ),
                    (),
                    (),
                    (),
                    "cpu",
                    1,
                )
                found[region.fingerprint] = Winner(
                    f"{region.name}-{region.fingerprint[:4]}",
                    region.fingerprint,
                    "kernel",
                    "hand",
                    text,
                    domain,
                    None,
                    False,
                    1,
                    "by hand",
                )
            return gm.forward

        with torch.no_grad():
            torch.compile(model, backend=record)(*args, **kwargs)
        torch._dynamo.reset()
        return list(found.values())

    return make


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Give a function that writes winners into a run directory."""

    def write(winners: list[Winner]) -> Path:
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        for number, winner in enumerate(winners):
            winner.save(folder / "winners" / f"{number:02d}-{winner.task}.json")
        return folder

    return write
