"""Node times on a GPU are device time, and the device's time is on the nodes that launched it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotswap.extractor.capture import capture
from hotswap.extractor.node_times import time_nodes
from hotswap.extractor.regions import op_name
from hotswap.models.workload import Call, Workload

pytestmark = pytest.mark.gpu


def test_a_large_matmul_takes_most_of_the_device_time() -> None:
    model = nn.Sequential(nn.Linear(4096, 4096), nn.GELU()).to("cuda", torch.bfloat16).eval()
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    (graph,) = capture(Workload(model, (Call((x,)),))).graphs
    with torch.no_grad():
        found = time_nodes(graph, "cuda")
    times = {op_name(node): us for node, us in found.us.items()}
    assert times["linear"] > times["gelu"] > 1.0
    kernels = {op_name(node): names for node, names in found.kernels.items()}
    assert kernels["linear"]
    assert any("elementwise" in name for name in kernels["gelu"])
    assert not kernels["linear"] & kernels["gelu"]
