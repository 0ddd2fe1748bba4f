"""What a node launches on a device is found under its range, whichever op launched it."""

from __future__ import annotations

import torch
from torch import nn
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from hotswap.extractor.capture import capture
from hotswap.extractor.node_times import NodeTimes, _launched, _tagged, time_nodes
from hotswap.models.workload import Call, Workload


def event(name: str, number: int, device: DeviceType = DeviceType.CPU) -> FunctionEvent:
    return FunctionEvent(number, name, 1, float(number), number + 1.0, use_device="cuda", device_type=device)  # type: ignore[no-untyped-call]


def test_kernels_of_ops_inside_a_range_are_the_nodes_and_the_ranges_shadow_is_none() -> None:
    around, op, inner = event("hotswap node 7", 1), event("aten::linear", 2), event("aten::addmm", 3)
    around.append_kernel("hotswap node 7", 0, 9)  # type: ignore[no-untyped-call]
    around.append_kernel("my_kernel", 0, 2)  # type: ignore[no-untyped-call]
    inner.append_kernel("gemm<bf16>", 0, 5)  # type: ignore[no-untyped-call]
    op.append_cpu_child(inner)  # type: ignore[no-untyped-call]
    around.append_cpu_child(op)  # type: ignore[no-untyped-call]
    shadow = event("hotswap node 7", 4, DeviceType.CUDA)
    ((index, found),) = _tagged([around, op, inner, shadow])
    assert index == 7
    assert set(_launched(found)) == {"my_kernel", "gemm<bf16>"}


def test_on_a_cpu_nodes_have_times_and_no_kernels() -> None:
    (graph,) = capture(Workload(nn.Linear(8, 8), (Call((torch.randn(4, 8),)),))).graphs
    with torch.no_grad():
        found = time_nodes(graph, "cpu", seconds=0.01)
    assert found == NodeTimes(found.us, {})
    assert all(us > 0 for us in found.us.values())
