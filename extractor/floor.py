"""The least time a region can take on this machine, from its external bytes, its FLOPs and measured limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from ..profiler.attention_flops import ATTENTION_FLOPS
from ..profiler.recording import Limits
from .node_ops import Decomposing, example
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
    once, and a table of which only some rows are gathered counts for no more than the rows that come out.
    """
    moved, matmul = external_bytes(region), matmul_flops(module)
    floor = max(moved / (limits.copy_rate(moved) * 1e3), matmul / _flop_per_us(region, limits))
    return Cost(moved, matmul or pointwise_flops(region), floor)


def external_bytes(region: Region) -> int:
    """Return the bytes a perfect kernel must move for the region: inputs once, outputs once."""
    outputs = sum(_bytes(example(n)) for n in region.outputs)
    gathered = {n.args[1] for n in region.nodes if _is_gather(n)}
    inputs = 0
    seen: set[Any] = set()
    for node in region.inputs:
        source = _storage_root(node)
        if source not in seen:
            seen.add(source)
            inputs += min(_bytes(example(node)), outputs) if node in gathered else _bytes(example(node))
    return inputs + outputs


def matmul_flops(module: fx.GraphModule) -> int:
    """Return the FLOPs torch's own registry counts for one call of the region's module, 0 for memory-bound work.

    Ops the registry does not know (the CPU's fused attention) are counted as what they decompose to.
    """
    examples = [node.meta["example_value"] for node in module.graph.nodes if node.op == "placeholder"]
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.no_grad(),
        FlopCounterMode(display=False, custom_mapping=ATTENTION_FLOPS) as counter,
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
