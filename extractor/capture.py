"""Record what a workload executes: every Dynamo graph with its regions, real inputs, runs and graph breaks.

The graphs come from a backend of our own over the user's entry point, so what is captured is what is swapped later.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..models.errors import InputError, ModelRaised
from ..models.workload import Call, Workload
from .regions import Region, find_regions


@dataclass
class CapturedGraph:
    """One Dynamo graph. inputs: the real arguments of its first run; runs: example call's name to executions a step."""

    index: int
    gm: fx.GraphModule
    regions: list[Region]
    inputs: list[Any] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Capture:
    """All graphs of a workload. breaks: "reason at file:line". notes: what could not be captured, and why."""

    workload: Workload
    graphs: tuple[CapturedGraph, ...]
    breaks: tuple[str, ...]
    notes: tuple[str, ...]


class _Recorder:
    """A Dynamo backend that keeps each graph and runs it as it is."""

    def __init__(self) -> None:
        self.graphs: list[CapturedGraph] = []
        self.call_name = ""

    def __call__(self, gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        graph = CapturedGraph(len(self.graphs), gm, find_regions(gm))
        self.graphs.append(graph)

        def run(*args: Any) -> Any:
            if not graph.inputs:
                graph.inputs = [_keep(a) for a in args]
            graph.runs[self.call_name] = graph.runs.get(self.call_name, 0) + 1
            return gm.forward(*args)

        return run


def _keep(value: Any) -> Any:
    """Return `value` safe from later in-place changes: weights as they are, activations copied, strides and all."""
    if not isinstance(value, torch.Tensor) or isinstance(value, torch.nn.Parameter):
        return value
    copy = torch.empty(0, dtype=value.dtype, device=value.device)
    storage = value.untyped_storage().clone()  # type: ignore[no-untyped-call]
    return copy.set_(storage, value.storage_offset(), value.shape, value.stride())


def capture(workload: Workload) -> Capture:
    """Return the graphs that the workload's calls execute; the model is left as it was.

    Raises InputError when a call does not fit the forward, ModelRaised when the model itself raises.
    """
    recorder = _Recorder()
    with capture_settings(), torch.set_grad_enabled(workload.mode == "training"):
        compiled = torch.compile(workload.model, backend=recorder)
        for call in workload.calls:
            recorder.call_name = call.name
            _run(compiled, call, workload.model)
        reasons = tuple(dict.fromkeys(_break_lines()))
    # A first run inside Dynamo's frame may differ from later ones (lazy buffers); only graphs that ran count.
    graphs = tuple(g for g in recorder.graphs if g.runs)
    notes = () if graphs else ("Dynamo yielded no graph: the model runs code it does not trace (nn.LSTM, jit.script)",)
    return Capture(workload, graphs, reasons, notes)


@contextlib.contextmanager
def capture_settings() -> Iterator[None]:
    """Static graphs, one a shape: sizes become symbols in the fingerprint, and every example value is a number."""
    from torch._dynamo.utils import graph_break_reasons

    graph_break_reasons.clear()
    with torch._dynamo.config.patch(
        specialize_float=True, automatic_dynamic_shapes=False, recompile_limit=64, accumulated_recompile_limit=1024
    ):
        yield


def _run(compiled: Any, call: Call, model: torch.nn.Module) -> None:
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise InputError(f"{call.name}: the inputs do not fit forward{signature}: {error}") from error
    try:
        compiled(*call.args, **call.kwargs)
    except Exception as error:  # the user's model may raise anything
        raise ModelRaised(f"{call.name}: the model raised {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _break_lines() -> Iterator[str]:
    from torch._dynamo.utils import graph_break_reasons

    for item in graph_break_reasons:
        frame = item.user_stack[-1] if item.user_stack else None
        place = f" at {frame.filename}:{frame.lineno}" if frame else ""
        yield f"{item.reason.strip().splitlines()[0]}{place}"
