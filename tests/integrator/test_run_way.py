"""A run of a model that gives no graph is put in module by module, without being told to."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from hotswap.benchmarks.sweep_kit.stand_in import write_stand_ins
from hotswap.extractor.capture import capture
from hotswap.extractor.extract import extract
from hotswap.integrator.patch import patch, unpatch
from hotswap.models.workload import Call, Workload
from hotswap.profiler.record import record
from hotswap.profiler.recording import Limits


class Recurrent(nn.Module):
    """An LSTM, which Dynamo gives up, before plain layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.norm, self.act = nn.LSTM(8, 8), nn.LayerNorm(8), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.lstm(x)[0]))  # type: ignore[no-any-return]


def test_a_run_is_put_in_the_way_it_was_captured(tmp_path: Path) -> None:
    model, x = Recurrent().eval(), torch.randn(3, 2, 8)
    work = Workload(model, (Call(args=(x,), name="x"),))
    limits = Limits("cpu", 10.0, {"float32": 0.05}, 1.0, 1 << 25, "")
    found = extract("m", capture(work), record(work, limits=limits, steps=1), tmp_path / "tasks", top=10)
    write_stand_ins(found, tmp_path / "tasks", tmp_path)
    found.save(tmp_path / "extraction.json")
    with torch.no_grad():
        expected = model(x)
        made = patch(model, tmp_path)
        got = model(x)
        unpatch(model)
    assert made.way == "module"
    assert sum(e.kernel_calls for e in made.engagement()) == 2
    assert torch.equal(got, expected)
