"""A model that holds a sparse matrix is profiled like any other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hotswap.models.workload import Call, Workload
from hotswap.profiler.record import record
from hotswap.profiler.recording import Limits


class Sparse(nn.Module):
    """A fixed sparse matrix times a dense one."""

    matrix: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(4).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.sparse.mm(self.matrix, x)
        return out


def test_a_sparse_buffer_is_counted_by_what_it_holds(limits: Limits) -> None:
    work = Workload(Sparse().eval(), (Call(args=(torch.ones(4, 2),), name="x"),))
    (call,) = record(work, limits=limits, steps=1).calls
    assert call.peak_bytes >= 4 * 4 + 2 * 4 * 8
