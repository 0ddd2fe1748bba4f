"""Regions of captured graphs: what is grouped, what is cut, what counts as the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn

from hotswap.extractor.floor import matmul_flops
from hotswap.extractor.node_ops import NodeKind, node_kinds
from hotswap.extractor.reference import region_module
from hotswap.extractor.regions import Region, find_regions


def graph_of(run: Callable[..., Any], *args: torch.Tensor, dynamic: bool | None = False) -> fx.GraphModule:
    """Return the one torch-IR graph that Dynamo captures of `run`."""
    graphs: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, _: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    torch._dynamo.reset()
    # Plain dynamic=True turns Python floats on modules (eps) into tensors; our own compiles specialise them.
    with torch.no_grad(), torch._dynamo.config.patch(specialize_float=True):
        torch.compile(run, backend=backend, dynamic=dynamic)(*args)
    (gm,) = graphs
    return gm


def regions_of(run: Callable[..., Any], *args: torch.Tensor) -> list[Region]:
    return find_regions(graph_of(run, *args))


def memory_regions(run: Callable[..., Any], *args: torch.Tensor) -> list[Region]:
    return [r for r in regions_of(run, *args) if r.kind == "memory"]


def test_a_chain_of_pointwise_ops_and_a_reduction_is_one_region() -> None:
    (region,) = regions_of(lambda x: torch.softmax(x * 2 + 1, -1), torch.randn(4, 8))
    assert [n.target for n in region.nodes][-1] is torch.softmax
    assert len(region.nodes) == 3


def test_a_matmul_parts_what_comes_before_it_from_what_comes_after() -> None:
    regions = regions_of(lambda x, w: F.linear(x.tanh(), w).softmax(-1), torch.randn(4, 8), torch.randn(8, 8))
    assert [r.kind for r in regions] == ["memory", "anchor", "memory"]


def test_what_maps_the_result_of_a_matmul_element_by_element_is_its_epilogue() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, w).view(2, 2, 8)
        return 0.5 * y * (1.0 + torch.tanh(0.8 * (y + 0.04 * y.pow(3))))

    (region,) = regions_of(run, torch.randn(4, 8), torch.randn(8, 8))
    assert region.kind == "anchor"
    assert len(region.inputs) == 2
    assert region.name.startswith("linear-")


def test_a_result_that_others_read_too_keeps_its_matmul_by_itself() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.linear(x, w)
        return F.gelu(y), y

    assert [r.kind for r in regions_of(run, torch.randn(4, 8), torch.randn(8, 8))] == ["anchor", "memory"]


def test_what_reads_more_than_the_result_of_a_matmul_is_no_epilogue() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w) + x

    assert [r.kind for r in regions_of(run, torch.randn(4, 8), torch.randn(8, 8))] == ["anchor", "memory"]


def test_a_residual_around_a_matmul_does_not_close_a_cycle() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        return F.linear(y, w) + y

    regions = memory_regions(run, torch.randn(4, 8), torch.randn(8, 8))
    assert [len(r.nodes) for r in regions] == [1, 1]


def test_a_value_used_inside_and_outside_a_region_is_an_output_of_it() -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x + y
        return h, F.layer_norm(h, (8,))

    (region,) = regions_of(run, torch.randn(4, 8), torch.randn(4, 8))
    assert len(region.outputs) == 2


def test_a_mutation_is_a_barrier() -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 2
        y.add_(1)
        return z + y

    gm = graph_of(run, torch.randn(4), torch.randn(4))
    mutating = [n for n in gm.graph.nodes if n.target == "add_"]
    assert [node_kinds(gm)[n] for n in mutating] == [NodeKind.BARRIER]


def test_randomness_is_a_barrier() -> None:
    gm = graph_of(lambda x: F.dropout(x, 0.5, training=True) + 1, torch.randn(4))
    assert NodeKind.BARRIER in node_kinds(gm).values()


def test_views_at_the_rim_of_a_region_stay_outside() -> None:
    (region,) = memory_regions(lambda x: (x.transpose(0, 1) * 2).unsqueeze(0), torch.randn(4, 8))
    assert [str(n.target) for n in region.nodes] == ["<built-in function mul>"]


def test_equal_layers_have_equal_fingerprints_whatever_their_number() -> None:
    def stack(depth: int) -> set[str]:
        layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)) for _ in range(depth)))
        return {r.fingerprint for r in regions_of(layers, torch.randn(2, 8))}

    assert stack(2) == stack(8)


def test_another_constant_or_dtype_is_another_task() -> None:
    def norm(eps: float, dtype: torch.dtype) -> str:
        (region,) = regions_of(lambda x: F.layer_norm(x, (8,), eps=eps), torch.randn(2, 8, dtype=dtype))
        return region.fingerprint

    assert norm(1e-5, torch.float32) != norm(1e-6, torch.float32)
    assert norm(1e-5, torch.float32) != norm(1e-5, torch.bfloat16)


def test_another_size_is_the_same_task_even_where_the_graph_carries_it_as_a_constant() -> None:
    def norm(rows: int, width: int) -> str:
        (region,) = regions_of(lambda x: F.layer_norm(x, (width,)) * 2, torch.randn(rows, width))
        return region.fingerprint

    assert norm(4, 16) == norm(9, 40)


def test_a_dynamic_graph_has_the_fingerprints_of_the_static_one() -> None:
    norm = nn.Sequential(nn.LayerNorm(16), nn.GELU())
    static = find_regions(graph_of(norm, torch.randn(4, 16)))
    dynamic = find_regions(graph_of(norm, torch.randn(6, 16), dynamic=True))
    assert [r.fingerprint for r in static] == [r.fingerprint for r in dynamic]


def test_a_table_broadcast_into_several_layers_is_a_region_of_its_own() -> None:
    def run(t: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        table = t.cos() * 2
        for _ in range(3):
            x = F.linear(x * table, w)
        return x

    regions = memory_regions(run, torch.randn(8), torch.randn(4, 8), torch.randn(8, 8))
    assert regions[0].nodes[0].target == "cos"
    assert len({r.fingerprint for r in regions}) == 2


def test_a_region_s_module_computes_the_region_at_other_sizes_too() -> None:
    gm = graph_of(lambda x: F.layer_norm(x, (16,)) * 2, torch.randn(4, 16))
    (region,) = find_regions(gm)
    module = region_module(gm, region)
    x = torch.randn(3, 40)
    (out,) = module(x)
    torch.testing.assert_close(out, F.layer_norm(x, (40,)) * 2)


def test_a_weight_and_an_activation_of_one_shape_are_told_apart() -> None:
    linear = nn.Linear(8, 8, bias=False)
    by_weight = regions_of(linear, torch.randn(8, 8))
    by_input = regions_of(lambda x, w: F.linear(x, w), torch.randn(8, 8), torch.randn(8, 8))
    assert by_weight[0].fingerprint != by_input[0].fingerprint


def test_fused_attention_is_an_anchor_though_the_flop_registry_does_not_know_its_cpu_op() -> None:
    gm = graph_of(lambda q: F.scaled_dot_product_attention(q, q, q), torch.randn(1, 2, 8, 16))
    assert NodeKind.ANCHOR in node_kinds(gm).values()


def test_looking_at_a_graph_that_enters_autocast_leaves_autocast_off() -> None:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, w).tanh()

    find_regions(graph_of(run, torch.randn(4, 8), torch.randn(8, 8)))
    assert not torch.is_autocast_enabled("cpu")


def test_fused_attention_counts_the_flops_of_its_two_products() -> None:
    gm = graph_of(lambda q: F.scaled_dot_product_attention(q, q, q), torch.randn(1, 2, 8, 16))
    (region,) = find_regions(gm)
    assert matmul_flops(region_module(gm, region)) == 2 * 2 * (2 * 8 * 8 * 16)


def test_a_comparison_called_by_its_dunder_name_is_a_node_like_any_other() -> None:
    """`torch.ops.aten` has methods of those names itself, and they are no ops."""
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    (by_name,) = regions_of(lambda x, y: x.exp().__le__(y).float().__ge__(x), x, y)
    assert [n.target for n in by_name.nodes] == ["exp", "__le__", "float", "__ge__"]
    assert len(by_name.inputs) == 2
