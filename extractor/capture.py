"""Record what a workload executes: every Dynamo graph with its regions, real inputs, runs and graph breaks.

The graphs come from a backend of our own over the user's entry point, so what is captured is what is swapped later.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import fx

from ..models.errors import InputError, ModelRaised
from ..models.workload import Call, Workload, own_copy
from ..profiler.step import undisturbed
from .faithful import difference
from .regions import Region, find_regions

Backend = Callable[[fx.GraphModule, list[Any]], Any]


@dataclass
class CapturedGraph:
    """One Dynamo graph. inputs: the real arguments of its first run; runs: example call's name to executions a step.

    module: path of the module that was captured, "" for the whole model.
    """

    index: int
    gm: fx.GraphModule
    regions: list[Region]
    module: str = ""
    inputs: list[Any] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Capture:
    """All graphs of a workload. breaks: "reason at file:line". notes: what could not be captured, and why.

    way: "graph" where the whole model gave graphs, "module" where it gave none and its modules were captured singly.
    """

    workload: Workload
    graphs: tuple[CapturedGraph, ...]
    breaks: tuple[str, ...]
    notes: tuple[str, ...]
    way: Literal["graph", "module"] = "graph"


class _Recorder:
    """A Dynamo backend that keeps each graph and runs it as it is."""

    def __init__(self) -> None:
        self.graphs: list[CapturedGraph] = []
        self.call_name = ""

    def ran(self) -> tuple[CapturedGraph, ...]:
        """Return the graphs that ran: a first run inside Dynamo's frame may differ from later ones (lazy buffers)."""
        return tuple(graph for graph in self.graphs if graph.runs)

    def __call__(self, gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        return self.record(gm, "")

    def of(self, module: str) -> Backend:
        """Return the backend that records graphs of the module at this path."""
        return lambda gm, example_inputs: self.record(gm, module)

    def record(self, gm: fx.GraphModule, module: str) -> Any:
        graph = CapturedGraph(len(self.graphs), gm, find_regions(gm), module)
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
    """Return the graphs that the workload's calls execute; model and inputs are left as they were.

    Where the whole model gives none, its modules are captured one by one. Raises InputError when a call does not fit
    the forward, ModelRaised when the model itself raises.
    """
    for call in workload.calls:
        _check_fit(call, workload.model)
    if isinstance(workload.model, torch.jit.ScriptModule):
        scripted = "TorchScript, which Dynamo does not trace: capture the Python model it was made from"
        return Capture(workload, (), (), (f"no graph of the model: {scripted}",), "module")
    with capture_settings(), torch.set_grad_enabled(workload.mode == "training"):
        whole, lost = _capture_whole(workload)
        breaks = tuple(_break_lines())
        if lost is None:
            return Capture(workload, whole, breaks, ())
        recorder = _Recorder()
        _capture_modules(recorder, workload)
    graphs = recorder.ran()
    rest = f"captured {len(graphs)} of its modules by themselves" if graphs else "nor of any of its modules"
    return Capture(workload, graphs, breaks, (f"no graph of the whole model ({lost}); {rest}",), "module")


def _capture_whole(workload: Workload) -> tuple[tuple[CapturedGraph, ...], str | None]:
    """Return the graphs of the whole model, and why they will not do, None where they will."""
    recorder = _Recorder()
    try:
        outputs = _run_calls(_compiled(workload.model, recorder), recorder, workload)
    except ModelRaised as error:
        _run_calls(workload.model, recorder, workload)  # raises where it is the model, and not its tracing, that fails
        return (), f"it raises while it is traced and not in eager: {error}"
    if not recorder.ran():
        return (), "; ".join(_break_lines()) or "Dynamo gave no reason"
    off = difference(_run_calls(workload.model, recorder, workload), outputs)
    return recorder.ran(), f"while it is traced it computes something else: {off}" if off else None


def _compiled(module: torch.nn.Module, backend: Backend) -> torch.nn.Module:
    """Return `module` under torch.compile, entered by a function with a code object of its own.

    That of torch's wrapper is shared by all modules, and Dynamo, having given up one of them there, skips the rest.
    """
    call = module.__call__

    def inner(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    entry = types.FunctionType(inner.__code__.replace(), inner.__globals__, "inner", None, inner.__closure__)
    compiled = cast("torch.nn.Module", torch.compile(module, backend=backend))
    compiled.forward = torch.compile(entry, backend=backend)
    return compiled


def _run_calls(model: Any, recorder: _Recorder, workload: Workload) -> list[Any]:
    """Return the outputs of the workload's calls; what `recorder` sees run is counted for them."""
    outputs = []
    with undisturbed(workload.model, workload.mode):
        torch.manual_seed(0)
        for call in workload.calls:
            recorder.call_name = call.name
            args, kwargs = own_copy((call.args, dict(call.kwargs)))
            try:
                outputs.append(model(*args, **kwargs))
            except Exception as error:  # the user's model may raise anything
                raise ModelRaised(f"{call.name}: the model raised {type(error).__name__}: {_said(error)}") from error
    return outputs


def _capture_modules(recorder: _Recorder, workload: Workload) -> None:
    """Record graphs of modules below the model: the outermost that give any, found level by level."""
    level = list(_inner_modules(workload.model, ""))
    while level:
        known = len(recorder.graphs)
        with _compiled_in_place(level, recorder):
            try:
                _run_calls(workload.model, recorder, workload)
            except ModelRaised:  # the model ran in eager: tracing one of these fails, so what is inside them is tried
                del recorder.graphs[known:]
        gave = {g.module for g in recorder.graphs[known:] if g.runs}
        level = [
            inner for found in level if found.path not in gave for inner in _inner_modules(found.module, found.path)
        ]


@dataclass(frozen=True)
class _Inner:
    """A module in its parent's table of modules."""

    parent: torch.nn.Module
    name: str
    module: torch.nn.Module
    path: str


def _inner_modules(module: torch.nn.Module, path: str) -> Iterator[_Inner]:
    """Yield the nearest modules below that have a forward, looking through lists and dicts of modules."""
    if isinstance(module, torch.jit.ScriptModule):
        return
    for name, child in module._modules.items():
        where = f"{path}.{name}".lstrip(".")
        if child is None or isinstance(child, torch.jit.ScriptModule):
            continue
        if isinstance(child, torch.nn.ModuleList | torch.nn.ModuleDict):
            yield from _inner_modules(child, where)
        else:
            yield _Inner(module, name, child, where)


@contextlib.contextmanager
def _compiled_in_place(level: Sequence[_Inner], recorder: _Recorder) -> Iterator[None]:
    """Let each of these modules run under Dynamo, where it stands; afterwards all is as it was."""
    try:
        for found in level:
            found.parent._modules[found.name] = _compiled(found.module, recorder.of(found.path))
        yield
    finally:
        for found in level:
            found.parent._modules[found.name] = found.module


@contextlib.contextmanager
def capture_settings() -> Iterator[None]:
    """Static graphs, one a shape: sizes become symbols in the fingerprint, and every example value is a number."""
    from torch._dynamo.utils import counters, graph_break_reasons

    graph_break_reasons.clear()
    counters["unimplemented"].clear()
    with torch._dynamo.config.patch(
        specialize_float=True, automatic_dynamic_shapes=False, recompile_limit=64, accumulated_recompile_limit=1024
    ):
        yield


def _check_fit(call: Call, model: torch.nn.Module) -> None:
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise InputError(f"{call.name}: the inputs do not fit forward{signature}: {error}") from error


def _said(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]


def _break_lines() -> list[str]:
    """Return why Dynamo left the code it traced, each reason once, with file and line where it tells them."""
    from torch._dynamo.utils import counters, graph_break_reasons

    found: dict[str, str] = {}
    for item in graph_break_reasons:
        frame = next((f for f in reversed(item.user_stack or ()) if f.filename != __file__), None)
        found[_first_line(item.reason)] = f" at {frame.filename}:{frame.lineno}" if frame else ""
    # A frame that is given up whole is no graph break to Dynamo: it is only counted.
    for text in counters["unimplemented"]:
        skipped = re.search(r"frame skipped: (\S+) \((.+) line (\d+)\)", text)
        place = found.get(_first_line(text)) or (f" at {skipped[2]}:{skipped[3]}" if skipped else "")
        found[_first_line(text)] = f"{place} ({skipped[1]} runs untraced)" if skipped else place
    return [f"{reason}{place}" for reason, place in found.items()]


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0].strip()
