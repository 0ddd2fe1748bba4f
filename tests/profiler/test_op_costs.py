"""Bytes and FLOPs of ops against figures worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hotswap.profiler.module_ranges import ModuleRanges
from hotswap.profiler.op_costs import OpCost, OpCosts, count_costs, op_cost
from hotswap.profiler.recording import Limits


def cost_of(function: Callable[..., Any], *args: Any, op: str) -> OpCost:
    with torch.no_grad():
        costs = count_costs(lambda: function(*args), ModuleRanges(nn.Identity()))
    found = [cost for (_, name), same in costs._by_module.items() if name == op for cost in same]
    assert len(found) == 1, [name for _, name in costs._by_module]
    return found[0]


X = torch.randn(8, 16)
TABLE = torch.randn(1000, 16)
PICK = torch.tensor([1, 5, 7])


@pytest.mark.parametrize(
    ("function", "args", "op", "moved"),
    [
        (torch.add, (X, X), "aten::add", 3 * 8 * 16 * 4),
        (lambda x: x + 1, (X,), "aten::add", 2 * 8 * 16 * 4),
        # Expanded inputs are small memory read often: 16 values, not 8 x 16.
        (torch.add, (X, X[0].expand(8, 16)), "aten::add", (2 * 8 * 16 + 16) * 4),
        (lambda x: x.view(-1), (X,), "aten::view", 0),
        (lambda x: x[:, 2:5], (X,), "aten::slice", 0),
        (lambda x: x.t().contiguous(), (X,), "aten::clone", 2 * 8 * 16 * 4),
        (lambda: torch.empty(100), (), "aten::empty", 0),
        (lambda: torch.ones(100), (), "aten::ones", 400),
        (lambda x: x.clone().mul_(2), (X,), "aten::mul_", 2 * 8 * 16 * 4),
        # What is overwritten or only written into is not read.
        (lambda x: torch.empty(8, 16).copy_(x), (X,), "aten::copy_", 2 * 8 * 16 * 4),
        (lambda x: torch.empty(8, 16).fill_(0), (X,), "aten::fill_", 8 * 16 * 4),
        (lambda x: torch.exp(x, out=torch.empty(8, 16)), (X,), "aten::exp", 2 * 8 * 16 * 4),
        # Rows picked by index: three of a thousand are read, and the three indices.
        (nn.functional.embedding, (PICK, TABLE), "aten::embedding", 2 * 3 * 16 * 4 + 3 * 8),
        (lambda t, i: t[i], (TABLE, PICK), "aten::index", 2 * 3 * 16 * 4 + 3 * 8),
        (lambda x: torch.cat([x, x]), (X,), "aten::cat", 4 * 8 * 16 * 4),
        (lambda x: x.to(torch.bfloat16), (X,), "aten::_to_copy", 8 * 16 * (4 + 2)),
        (lambda x: x.sum(), (X,), "aten::sum", (8 * 16 + 1) * 4),
    ],
)
def test_an_op_moves_what_it_must_read_and_write(
    function: Callable[..., Any], args: tuple[Any, ...], op: str, moved: int
) -> None:
    assert cost_of(function, *args, op=op).bytes == moved


def test_matmul_and_convolution_flops_come_from_torch() -> None:
    a, b = torch.randn(8, 16), torch.randn(16, 32)
    assert cost_of(torch.mm, a, b, op="aten::mm").flops == 2 * 8 * 16 * 32
    image, kernel = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
    convolution = cost_of(nn.functional.conv2d, image, kernel, op="aten::convolution")
    assert convolution.flops == 2 * 4 * 6 * 6 * 3 * 3 * 3


def test_the_floor_is_the_slower_of_moving_and_computing(limits: Limits) -> None:
    moving = OpCost(((1,),), ("float32",), ((1,),), bytes=5000, flops=1_000_000, dtype="float32")
    computing = OpCost(((1,),), ("float32",), ((1,),), bytes=500, flops=4_000_000, dtype="float32")
    in_bf16 = OpCost(((1,),), ("bfloat16",), ((1,),), bytes=500, flops=4_000_000, dtype="bfloat16")
    assert (moving.floor_us(limits), moving.source(limits)) == (5.0, "memory")
    assert (computing.floor_us(limits), computing.source(limits)) == (4.0, "compute")
    assert in_bf16.floor_us(limits) == 2.0


def test_a_dtype_whose_rate_is_not_known_leaves_the_memory_floor(limits: Limits) -> None:
    cost = OpCost(((1,),), ("float64",), ((1,),), bytes=500, flops=10**9, dtype="float64")
    assert (cost.floor_us(limits), cost.source(limits)) == (0.5, "memory")


def test_costs_are_found_by_module_first_and_a_number_beside_a_tensor_does_not_matter() -> None:
    small, large = (OpCost(((4, 4),), ("float32",), ((4, 1),), size, 0, "float32") for size in (100, 200))
    costs = OpCosts({("a", "aten::slice"): [large], ("b", "aten::slice"): [small]})
    assert costs.find("a", "aten::slice", ((4, 4), ())) == large
    assert costs.find("elsewhere", "aten::slice", ((4, 4),)) == small
    assert costs.find("a", "aten::slice", ((4, 5),)) is None


def test_shapes_that_a_trace_leaves_out_are_found_only_where_one_call_fits() -> None:
    one, two = (OpCost(((4, 4), (n,)), ("float32", "int64"), ((4, 1), (1,)), 100, 0, "float32") for n in (2, 3))
    assert OpCosts({("a", "aten::index"): [one]}).find("a", "aten::index", ((4, 4),)) == one
    assert OpCosts({("a", "aten::index"): [one, two]}).find("a", "aten::index", ((4, 4),)) is None


def test_an_op_in_place_is_found_as_the_out_of_place_one_that_a_dispatch_mode_sees() -> None:
    cost = OpCost(((4, 4), (4,)), ("float32",) * 2, ((4, 1), (1,)), 100, 0, "float32")
    assert OpCosts({("a", "aten::add"): [cost]}).find("a", "aten::add_", ((4, 4), (4,))) == cost


def test_key_heads_that_several_query_heads_share_cost_as_many_flops_as_any() -> None:
    query, shared = torch.empty(2, 8, 16, 32, device="meta"), torch.empty(2, 2, 24, 32, device="meta")
    own = torch.empty(2, 8, 24, 32, device="meta")
    op = torch.ops.aten._scaled_dot_product_efficient_attention.default
    out = torch.empty(2, 8, 16, 32, device="meta")
    costs = [op_cost(op, (query, keys, keys, None, False), {}, (out,)).flops for keys in (shared, own)]
    assert costs == [2 * 2 * 8 * 16 * 24 * 64] * 2
