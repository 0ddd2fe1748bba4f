"""The least time a region can take on this machine, from its external bytes, its FLOPs and measured limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from ..profiler.flop_formulas import FLOP_FORMULAS
from ..profiler.op_costs import grouped_reads
from ..profiler.recording import Limits
from .node_ops import Decomposing, example, ops_of
from .regions import Region


@dataclass(frozen=True)
class Cost:
    """The work of one call of a region, and the least time it can take here."""

    bytes: int
    flops: int
    floor_us: float


def cost(region: Region, module: fx.GraphModule, limits: Limits) -> Cost:
    """Return the cost of one call: floor = max(external bytes / copy rate, matmul FLOPs / matmul rate of the dtype).

    A region's external bytes are its inputs read once and its outputs written once; inputs that share a storage count
    once. A table of which only some rows are gathered counts for no more than the rows that come out, a stack of
    matrices for no more than rows can choose from it.
    """
    moved, matmul = external_bytes(region), matmul_flops(module)
    floor = max(moved / (limits.copy_rate(moved) * 1e3), matmul / _flop_per_us(region, limits))
    return Cost(moved, matmul or pointwise_flops(region), floor)


def external_bytes(region: Region) -> int:
    """Return the bytes a perfect kernel must move for the region: inputs once, outputs once."""
    outputs = sum(_bytes(example(n)) for n in region.outputs)
    gathered = {n.args[1] for n in region.nodes if _is_gather(n)}
    chosen = _chosen_bytes(region)
    inputs = 0
    seen: set[Any] = set()
    for node in region.inputs:
        source = _storage_root(node)
        if source not in seen:
            seen.add(source)
            moved = chosen.get(source, _bytes(example(node)))
            inputs += min(moved, outputs) if node in gathered else moved
    return inputs + outputs


def _chosen_bytes(region: Region) -> dict[Any, int]:
    """Return the bytes that grouped matmuls need read of each stack of matrices, by its storage."""
    found: dict[Any, int] = {}
    for node in region.nodes:
        if any(one.op.overloadpacket is torch.ops.aten._grouped_mm for one in ops_of(node) or ()):
            left, right = (n for n in node.all_input_nodes[:2])
            found[_storage_root(right)] = grouped_reads(example(left), example(right))[1]
    return found


def matmul_flops(module: fx.GraphModule) -> int:
    """Return the FLOPs counted for one call of the region's module by formula, 0 for memory-bound work.

    Ops that have none (the CPU's fused attention) are counted as what they decompose to.
    """
    examples = [node.meta["example_value"] for node in module.graph.nodes if node.op == "placeholder"]
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.no_grad(),
        FlopCounterMode(display=False, custom_mapping=FLOP_FORMULAS) as counter,
        Decomposing(),
    ):
        module(*(torch.empty_strided(e.shape, e.stride(), dtype=e.dtype, device=e.device) for e in examples))
    return int(counter.get_total_flops())


def pointwise_flops(region: Region) -> int:
    """Return one FLOP for each element of each node's result: a roofline's x axis, no more exact than that."""
    return sum(int(example(n).numel()) for n in region.nodes if isinstance(example(n), torch.Tensor))


def _flop_per_us(region: Region, limits: Limits) -> float:
    dtype = str(example(region.outputs[0]).dtype).removeprefix("torch.")
    return limits.matmul_tflop_s.get(dtype, max(limits.matmul_tflop_s.values())) * 1e6


def _bytes(value: torch.Tensor) -> int:
    return int(value.numel()) * value.element_size()


def _is_gather(node: fx.Node) -> bool:
    return node.target is torch.nn.functional.embedding


def _storage_root(node: fx.Node) -> Any:
    """Return what identifies the memory behind `node`: fakes of views share their base's storage."""
    return example(node).untyped_storage()._cdata
