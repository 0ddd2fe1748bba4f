"""Time every node of a captured graph by running it node by node on its real inputs, and name what it launches.

Time belongs to nodes: an op is timed where it stands, with its real operands and warm caches.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from .capture import CapturedGraph
from .node_ops import is_call

_TAG = "hotswap node "


@dataclass(frozen=True)
class NodeTimes:
    """us: median time of each call node in microseconds a run. kernels: symbols of what it launched on a device."""

    us: Mapping[fx.Node, float]
    kernels: Mapping[fx.Node, frozenset[str]] = field(default_factory=dict)


class _TimedRun(fx.Interpreter):
    """Runs a graph, taking the host time of each call without the interpreter's own."""

    def __init__(self, gm: fx.GraphModule, clock: Callable[[], float]) -> None:
        super().__init__(gm)
        self.clock = clock
        self.seconds: dict[fx.Node, float] = {}

    def run_node(self, n: fx.Node) -> Any:
        if not is_call(n):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        call = getattr(self, n.op)
        start = self.clock()
        result = call(n.target, args, kwargs)
        self.seconds[n] = self.clock() - start
        return result


class _TaggedRun(fx.Interpreter):
    """Runs a graph with a profiler range around each call, so that launches can be told apart."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.index = {node: i for i, node in enumerate(gm.graph.nodes)}

    def run_node(self, n: fx.Node) -> Any:
        with torch.profiler.record_function(f"{_TAG}{self.index[n]}"):
            return super().run_node(n)


def time_nodes(
    graph: CapturedGraph, device: str, *, seconds: float = 2.0, clock: Callable[[], float] = time.perf_counter
) -> NodeTimes:
    """Return the time of each call node: device time on a GPU, host time on a CPU.

    Runs at least three times after a warm-up, more while `seconds` last, at most fifteen.
    """
    if torch.device(device).type != "cpu":
        return _on_device(graph)
    samples: dict[fx.Node, list[float]] = defaultdict(list)
    _TimedRun(graph.gm, clock).run(*graph.inputs)
    start = clock()
    for run in range(15):
        if run >= 3 and clock() - start > seconds:
            break
        timed = _TimedRun(graph.gm, clock)
        timed.run(*graph.inputs)
        for node, spent in timed.seconds.items():
            samples[node].append(spent * 1e6)
    return NodeTimes({node: statistics.median(values) for node, values in samples.items()})


def _on_device(graph: CapturedGraph, runs: int = 5) -> NodeTimes:
    nodes = list(graph.gm.graph.nodes)
    samples: dict[fx.Node, list[float]] = defaultdict(list)
    kernels: dict[fx.Node, frozenset[str]] = {}
    _TaggedRun(graph.gm).run(*graph.inputs)
    torch.accelerator.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    for _ in range(runs):
        # acc_events: one cycle a profile, which torch 2.11 warns about losing although nothing is lost.
        with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
            _TaggedRun(graph.gm).run(*graph.inputs)
            torch.accelerator.synchronize()
        for index, event in _tagged(profiler.events() or ()):
            samples[nodes[index]].append(float(event.device_time_total))
            kernels[nodes[index]] = frozenset(_launched(event))
    us = {n: statistics.median(v) for n, v in samples.items() if is_call(n)}
    return NodeTimes(us, {n: kernels[n] for n in us})


def _tagged(events: Iterable[FunctionEvent]) -> Iterator[tuple[int, FunctionEvent]]:
    """Yield the range of each node, with the node's place in its graph."""
    for event in events:
        if event.name.startswith(_TAG) and event.device_type == DeviceType.CPU:
            yield int(event.name.removeprefix(_TAG)), event


def _launched(event: FunctionEvent) -> Iterator[str]:
    """Yield the symbols of the kernels that were launched inside a range, by whichever op."""
    # The device's shadow of a range bears the range's own name.
    yield from (kernel.name for kernel in event.kernels if not kernel.name.startswith(_TAG))
    for child in event.cpu_children:
        yield from _launched(child)
