"""A grouped matmul, which mixtures of experts run, is an anchor with the FLOPs and bytes of its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hotswap.extractor.floor import external_bytes, matmul_flops
from hotswap.extractor.node_ops import NodeKind, node_kinds
from hotswap.extractor.reference import region_module
from hotswap.extractor.regions import Region, find_regions
from hotswap.profiler.module_ranges import ModuleRanges
from hotswap.profiler.op_costs import count_costs

EXPERTS, INNER, COLUMNS = 4, 16, 32


def experts(rows: int) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """Return a grouped linear over `rows` rows, and its inputs in bf16: rows, stacked weights, ends of the groups."""
    x = torch.randn(rows, INNER, dtype=torch.bfloat16)
    weight = torch.randn(EXPERTS, COLUMNS, INNER, dtype=torch.bfloat16)
    ends = torch.full((EXPERTS,), rows, dtype=torch.int32)
    return lambda x, w, ends: torch._grouped_mm(x, w.transpose(-2, -1), offs=ends), (x, weight, ends)


def captured(rows: int) -> tuple[Any, Region]:
    found: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        found.append(gm)
        return gm.forward

    run, inputs = experts(rows)
    with torch.no_grad():
        torch.compile(run, backend=backend, dynamic=False)(*inputs)
    (region,) = [r for r in find_regions(found[0]) if any("grouped" in str(n.target) for n in r.nodes)]
    return found[0], region


def test_it_is_an_anchor() -> None:
    gm, region = captured(24)
    (node,) = [n for n in region.nodes if node_kinds(gm)[n] is NodeKind.ANCHOR]
    assert tuple(node.meta["example_value"].shape) == (24, COLUMNS)


def test_its_flops_are_those_of_its_rows() -> None:
    gm, region = captured(24)
    assert matmul_flops(region_module(gm, region)) == 2 * 24 * INNER * COLUMNS


@pytest.mark.parametrize(("rows", "matrices"), [(24, EXPERTS), (3, 3)])
def test_it_reads_no_more_matrices_than_rows_can_choose(rows: int, matrices: int) -> None:
    _, region = captured(rows)
    moved = 2 * (rows * INNER + matrices * INNER * COLUMNS + rows * COLUMNS) + 4 * EXPERTS
    assert external_bytes(region) == moved
    run, inputs = experts(rows)
    costs = count_costs(lambda: run(*inputs), ModuleRanges(torch.nn.Identity()))
    (cost,) = [c for (_, op), same in costs._by_module.items() if op == "aten::_grouped_mm" for c in same]
    assert (cost.bytes, cost.flops) == (moved, 2 * rows * INNER * COLUMNS)


@pytest.mark.parametrize(
    ("left", "right", "flops"),
    [
        ((4, 8, 16), (4, 16, 32), 4 * 2 * 8 * 16 * 32),
        ((8, 64), (64, 32), 2 * 8 * 64 * 32),
        ((4, 8, 16), (16, 96), 2 * 8 * 16 * 96),
    ],
)
def test_each_form_of_it_has_its_flops(left: tuple[int, ...], right: tuple[int, ...], flops: int) -> None:
    from hotswap.profiler.flop_formulas import FLOP_FORMULAS

    assert FLOP_FORMULAS[torch.ops.aten._grouped_mm](left, right, (4,), out_shape=None) == flops
