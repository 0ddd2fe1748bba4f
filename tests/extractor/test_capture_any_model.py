"""What capture does with models that Dynamo follows in part or not at all, and those that write into their inputs."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hotswap.extractor.capture import Capture, capture
from hotswap.extractor.extract import extract
from hotswap.extractor.node_ops import NodeKind, node_kinds
from hotswap.models.workload import Call, Workload
from hotswap.profiler.record import record
from hotswap.profiler.recording import Limits


@pytest.fixture
def limits() -> Limits:
    return Limits("cpu", 10.0, {"float32": 0.05}, 1.0, 1 << 25, "")


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


class LoopBreaks(nn.Module):
    """Breaks the graph in a loop, so that Dynamo gives its frame up; its modules stand in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(mlp() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([layer(x[x[:, 0] > 0]), x])
        return x


class Writes(nn.Module):
    """Writes into its input and into a buffer."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1.0)
        return torch.tanh(x.mul_(2.0)) + self.count


class UsesNumpy(nn.Module):
    """Sums in numpy between two torch ops."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(x) * x
        return torch.from_numpy(np.sum(y.numpy(), axis=-1)) + y.exp().sum(-1)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def refuse_dynamo() -> None:
    if any(frame.name == "compile_wrapper" for frame in traceback.extract_stack()):
        raise AssertionError("not under Dynamo")


class RefusesDynamo(nn.Module):
    """Runs in eager, and raises where it is called under Dynamo, as Dynamo's own mistakes do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        refuse_dynamo()
        return y


def captured(model: nn.Module, *args: Any) -> Capture:
    return capture(Workload(model.eval(), (Call(args=args, name="x"),)))


def test_modules_are_captured_one_by_one_where_the_whole_model_gives_no_graph() -> None:
    model = LoopBreaks()
    found = captured(model, torch.randn(6, 8))
    assert found.way == "module"
    assert {graph.module for graph in found.graphs} == {"layers.0", "layers.1"}
    assert [type(child) for child in model.layers] == [nn.Sequential, nn.Sequential]


def test_a_model_that_only_its_tracing_fails_is_captured_below_what_fails() -> None:
    found = captured(RefusesDynamo(), torch.randn(6, 8))
    assert found.way == "module"
    assert [graph.module for graph in found.graphs] == ["body"]
    assert "raises while it is traced and not in eager" in found.notes[0]
    assert "not under Dynamo" in found.notes[0]


def test_below_a_module_that_tracing_fails_the_modules_inside_it_are_tried() -> None:
    class Deeper(LoopBreaks):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([RefusesDynamo()])

    found = captured(Deeper(), torch.randn(6, 8))
    assert [graph.module for graph in found.graphs] == ["layers.0.body"]


def test_what_was_lost_is_named_with_the_line_that_lost_it() -> None:
    found = captured(LoopBreaks(), torch.randn(6, 8))
    assert any(f"at {__file__}:" in line and "forward runs untraced" in line for line in found.breaks)
    assert "no graph of the whole model" in found.notes[0]


def test_sites_of_a_module_by_module_capture_have_their_whole_path(tmp_path: Path, limits: Limits) -> None:
    work = Workload(LoopBreaks().eval(), (Call(args=(torch.randn(6, 8),), name="x"),))
    found = extract("m", capture(work), record(work, limits=limits, steps=1), tmp_path, top=100)
    assert found.way == "module"
    assert "layers.1.2" in {site.module for task in found.tasks for site in task.sites}


def test_a_scripted_model_is_no_error_and_its_reason_is_said() -> None:
    with pytest.warns(DeprecationWarning, match="script"):
        scripted: nn.Module = torch.jit.script(mlp())
    found = captured(scripted, torch.randn(2, 8))
    assert not found.graphs
    assert "TorchScript" in found.notes[0]


def test_capture_leaves_inputs_and_buffers_as_they_were() -> None:
    model, x = Writes(), torch.ones(3)
    captured(model, x)
    assert x.tolist() == [1.0, 1.0, 1.0]
    assert model.count.item() == 0.0


def test_profiling_leaves_inputs_as_they_were(limits: Limits) -> None:
    x = torch.ones(3)
    record(Workload(Writes().eval(), (Call(args=(x,), name="x"),)), limits=limits, steps=1)
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_a_function_of_numpy_stands_in_no_region() -> None:
    (graph,) = captured(UsesNumpy(), torch.randn(4, 8)).graphs
    of_numpy = [n for n, kind in node_kinds(graph.gm).items() if "numpy_to_tensor_wrapper" in type(n.target).__name__]
    assert of_numpy
    assert all(node_kinds(graph.gm)[node] is NodeKind.BARRIER for node in of_numpy)
    assert not any(set(of_numpy) & set(region.nodes) for region in graph.regions)
    assert graph.regions


class OtherwiseWhileTraced(nn.Module):
    """Takes another way while Dynamo looks, as code that asks `is_compiling` may."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * (2.0 if torch.compiler.is_compiling() else 1.0)  # type: ignore[no-any-return]


def test_graphs_that_compute_something_else_than_the_model_are_not_used() -> None:
    found = captured(OtherwiseWhileTraced(), torch.randn(4, 8))
    assert found.way == "module"
    assert {graph.module for graph in found.graphs} == {"body"}
    assert "while it is traced it computes something else" in found.notes[0]


class NothingLeft(nn.Module):
    """Slices all rows away before its last ops."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(x) * 2.0, torch.sigmoid(x[len(x) :]) * 3.0


def test_a_region_recorded_empty_is_no_task(tmp_path: Path, limits: Limits) -> None:
    work = Workload(NothingLeft().eval(), (Call(args=(torch.randn(4, 8),), name="x"),))
    found = extract("m", capture(work), record(work, limits=limits, steps=1), tmp_path, top=100)
    assert [task.name for task in found.tasks] == ["tanh-mul"]


class Recurrent(nn.Module):
    """An LSTM, which Dynamo gives up, between plain layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.norm, self.head = nn.LSTM(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.lstm(x)[0]))  # type: ignore[no-any-return]


def test_one_module_that_dynamo_gives_up_hides_none_of_the_others() -> None:
    found = captured(Recurrent(), torch.randn(3, 2, 8))
    assert {graph.module for graph in found.graphs} == {"norm", "head"}


def test_a_model_is_captured_after_another_was_given_up() -> None:
    assert not captured(nn.LSTM(8, 8), torch.randn(3, 2, 8)).graphs
    assert captured(mlp(), torch.randn(3, 8)).way == "graph"
