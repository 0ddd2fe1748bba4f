"""Turn a capture into ranked tasks: equal regions become one task, and the most attainable gain comes first."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ..profiler.recording import Limits, Profile
from .capture import Capture, CapturedGraph
from .floor import cost
from .node_ops import NodeKind, example, node_kinds
from .node_times import NodeTimes, time_nodes
from .reference import input_names, region_module
from .regions import Region, hint, op_name
from .task import Extraction, ShapeCase, Site, Skipped, Task, TensorSpec, task_folder
from .task_inputs import describe, snapshot
from .write_task import task_symbols, write_task

logger = logging.getLogger(__name__)

# Below this share of the step a thing is not worth a line of its own.
_WORTH_A_LINE = 0.01
# From this share on a region is tried even at its floor: the floor of an anchor is only as good as the matmul it was
# measured with, and a packed or better-blocked one can be faster.
_WORTH_A_TRY = 0.05
# A schema of torch holds 64 arguments, and the first of a swapped op says which site it stands for.
MOST_INPUTS = 63


@dataclass
class _Place:
    """A region in its graph, with its measured time a run, its runs a weighted step, and the kernels it launched."""

    graph: CapturedGraph
    region: Region
    us: float
    runs: float
    kernels: frozenset[str] = frozenset()


@dataclass
class _Draft:
    """A task in the making: all places of one fingerprint."""

    places: list[_Place] = field(default_factory=list)
    module: fx.GraphModule | None = None

    @property
    def first(self) -> _Place:
        return self.places[0]


def extract(workload_name: str, capture: Capture, profile: Profile, folder: Path, *, top: int) -> Extraction:
    """Write the `top` tasks with the most attainable gain as folders under `folder` and return the whole record.

    profile: supplies the step time that shares are counted against, and the measured limits that floors come from.
    """
    weights = {call.name: call.weight for call in capture.workload.calls}
    with torch.set_grad_enabled(capture.workload.mode == "training"):
        measured = {g.index: time_nodes(g, profile.device) for g in capture.graphs}
    times = {index: nodes.us for index, nodes in measured.items()}
    runs = {g.index: sum(n * weights[c] for c, n in g.runs.items()) for g in capture.graphs}
    # The least of the samples, not the median: what else the machine did while it was timed only ever adds.
    step_us = sum(min(c.step_samples_us, default=c.step_us) * c.weight for c in profile.calls)
    # One by one nodes may take longer than together, and a shared machine is slower at times: no share is of less.
    nodes_us = sum(sum(times[i].values()) * runs[i] for i in times)
    step_us = max(step_us, nodes_us)
    drafts = _drafts(capture, measured, runs)
    ranked = sorted((_task(d, profile.limits, step_us, profile.device) for d in drafts), key=lambda t: -t[1].gain_us)
    worth = [(d, t) for d, t in ranked if t.gain_us > 0 or t.share >= _WORTH_A_TRY]
    chosen = _named([(d, t) for d, t in worth if len(t.inputs) <= MOST_INPUTS][:top])
    left = [(d, t) for d, t in ranked if t.fingerprint not in {c.fingerprint for _, c in chosen}]
    tasks = _write(chosen, folder)
    skipped = [*_left_out(left, top), *_unsolved(capture, times, runs, step_us)]
    notes = (*capture.notes, *(() if tasks else ("no region with attainable gain was found",)))
    return Extraction(
        model=workload_name,
        tasks=tuple(tasks),
        skipped=tuple(sorted(skipped, key=lambda s: -s.self_us)),
        graphs=len(capture.graphs),
        breaks=capture.breaks,
        covered=nodes_us / step_us if step_us else 0.0,
        notes=notes,
        way=capture.way,
    )


def _drafts(capture: Capture, measured: dict[int, NodeTimes], runs: dict[int, float]) -> list[_Draft]:
    found: dict[str, _Draft] = defaultdict(_Draft)
    for graph in capture.graphs:
        for region in graph.regions:
            if any(0 in example(node).shape for node in region.inputs):
                continue  # recorded empty: there is nothing to do, and nothing to learn its other sizes from
            times = measured[graph.index]
            us = sum(times.us.get(n, 0.0) for n in region.nodes)
            kernels = frozenset[str]().union(*(times.kernels.get(n, ()) for n in region.nodes))
            found[region.fingerprint].places.append(_Place(graph, region, us, runs[graph.index], kernels))
    return list(found.values())


def _task(draft: _Draft, limits: Limits, step_us: float, device: str) -> tuple[_Draft, Task]:
    """Return the draft with its task record; inputs are described from fakes, later replaced by captured ones."""
    first = draft.first.region
    draft.module = region_module(draft.first.graph.gm, first)
    cases = _cases(draft)
    # The first case's module is the draft's own.
    modules = [draft.module, *(region_module(p.graph.gm, p.region) for p, _ in list(cases.values())[1:])]
    costs = [
        (cost(place.region, module, limits), sum(p.runs for p in members))
        for module, (place, members) in zip(modules, cases.values(), strict=True)
    ]
    eager = sum(p.us * p.runs for p in draft.places)
    floor = sum(one.floor_us * runs for one, runs in costs)
    share = eager / step_us if step_us else 0.0
    rest = max(0.0, 1.0 - share * (1.0 - min(1.0, floor / eager if eager else 1.0)))
    task = Task(
        name=first.name or "region",
        fingerprint=first.fingerprint,
        kind=first.kind,
        device=device,
        ops=tuple(op_name(n) for n in first.nodes),
        inputs=input_names(first),
        outputs=len(first.outputs),
        cases=tuple(_case(i, place, members) for i, (place, members) in enumerate(cases.values())),
        sites=tuple(dict.fromkeys(_site(p) for p in draft.places)),
        eager_us=eager,
        floor_us=floor,
        share=share,
        ceiling=1.0 / rest if rest else 1.0,
        bytes=int(sum(one.bytes * runs for one, runs in costs)),
        flops=int(sum(one.flops * runs for one, runs in costs)),
        kernels=tuple(sorted({name for p in draft.places for name in p.kernels})),
    )
    return draft, task


def _cases(draft: _Draft) -> dict[Any, tuple[_Place, list[_Place]]]:
    """Group places by the exact layout of their inputs: each group is one shape case, shown by its first place."""
    found: dict[Any, tuple[_Place, list[_Place]]] = {}
    for place in draft.places:
        key = tuple(_layout(n) for n in place.region.inputs)
        found.setdefault(key, (place, []))[1].append(place)
    return found


def _layout(node: fx.Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and strides a tensor had while it was traced; symbols can be neither keys nor written down."""
    tensor = example(node)
    return tuple(map(hint, tensor.shape)), tuple(map(hint, tensor.stride()))


def _case(index: int, place: _Place, members: Sequence[_Place]) -> ShapeCase:
    return ShapeCase(
        name=f"s{index}",
        inputs=tuple(
            TensorSpec(name, *_layout(n), 0, str(example(n).dtype)[6:], "activation")
            for n, name in zip(place.region.inputs, input_names(place.region), strict=True)
        ),
        calls=len(members),
        weight=sum(p.runs for p in members),
        eager_us=sum(p.us for p in members) / len(members),
    )


def _site(place: _Place) -> Site:
    node = place.region.nodes[-1]
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    lines = (line.strip() for line in (node.meta.get("stack_trace") or "").splitlines())
    code = [line for line in lines if line and not line.startswith("File ") and line.strip("^~ ")]
    inside = {n for n in node.graph.nodes if n.op.startswith("call_") and path in _paths(n)}
    return Site(
        module=".".join(filter(None, (place.graph.module, module_path(path)))),
        module_class=getattr(kind, "__name__", str(kind).rsplit(".", 1)[-1].strip("'>")),
        ops=tuple(op_name(n) for n in place.region.nodes),
        source=code[-1] if code else "",
        graph=place.graph.index,
        whole_module=bool(path) and inside == set(place.region.nodes),
    )


def _paths(node: fx.Node) -> set[str]:
    """Return the paths of the modules a node is in, its own and those around it."""
    return {path for path, _ in (node.meta.get("nn_module_stack") or {}).values()}


def module_path(spelled: str) -> str:
    """Return a module's path in the user's model from Dynamo's spelling: "L['self'].encoder.0" is "encoder.0".

    So is "L['call'].__self__.encoder.0": a model that was entered through its bound call.
    """
    head, _, tail = spelled.partition("].")
    tail = tail.removeprefix("__self__").removeprefix(".")
    return tail if head.startswith("L[") else spelled.removeprefix("L['self']")


def _named(chosen: list[tuple[_Draft, Task]]) -> list[tuple[_Draft, Task]]:
    """Give tasks of one name their fingerprint's first digits, so that names are unique in a run."""
    names = [task.name for _, task in chosen]
    return [(d, t if names.count(t.name) == 1 else replace(t, name=f"{t.name}-{t.fingerprint[:4]}")) for d, t in chosen]


def _write(chosen: list[tuple[_Draft, Task]], folder: Path) -> list[Task]:
    wanted: dict[int, list[Region]] = defaultdict(list)
    graphs: dict[int, CapturedGraph] = {}
    shown = [(d, t, [place for place, _ in _cases(d).values()]) for d, t in chosen]
    for _, _, places in shown:
        for place in places:
            graphs[place.graph.index] = place.graph
            wanted[place.graph.index].append(place.region)
    inputs: dict[int, list[torch.Tensor]] = {}
    with torch.no_grad():
        for index, regions in wanted.items():
            for region, tensors in zip(regions, snapshot(graphs[index], regions), strict=True):
                inputs[id(region)] = tensors
    return [_write_one(rank, d, t, places, inputs, folder) for rank, (d, t, places) in enumerate(shown)]


def _write_one(
    rank: int, draft: _Draft, task: Task, places: list[_Place], inputs: dict[int, list[torch.Tensor]], folder: Path
) -> Task:
    assert draft.module is not None
    tensors = [inputs[id(place.region)] for place in places]
    specs = [
        describe(place.region, task.inputs, each, case.name)
        for case, place, each in zip(task.cases, places, tensors, strict=True)
    ]
    task = replace(task, cases=tuple(replace(c, inputs=s) for c, s in zip(task.cases, specs, strict=True)))
    task = replace(task, size_symbols=task_symbols(task, draft.module))
    where = f"{task.sites[0].module} ({task.sites[0].module_class})" if task.sites else "the model"
    title = f"{task.name}: {len(task.sites)} place(s), first {where}."
    write_task(task_folder(folder, rank, task), task, draft.module, tensors, title)
    return task


def _left_out(rest: list[tuple[_Draft, Task]], top: int) -> list[Skipped]:
    def reason(task: Task) -> str:
        if len(task.inputs) > MOST_INPUTS:
            return f"it reads {len(task.inputs)} tensors, and an op of torch takes {MOST_INPUTS} at most"
        return f"outside --top {top}" if task.gain_us > 0 else "already at its floor"

    return [
        Skipped(t.name, t.sites[0].module if t.sites else "", t.eager_us, t.share, reason(t))
        for _, t in rest
        if t.share >= _WORTH_A_LINE
    ]


def _unsolved(
    capture: Capture, times: Mapping[int, Mapping[fx.Node, float]], runs: dict[int, float], step_us: float
) -> list[Skipped]:
    """Return hot nodes that stand in no region, by op, with the reason."""
    spent: dict[tuple[str, str], float] = defaultdict(float)
    modules: dict[tuple[str, str], str] = {}
    for graph in capture.graphs:
        inside = {n for region in graph.regions for n in region.nodes}
        kinds = node_kinds(graph.gm)
        for node, us in times[graph.index].items():
            if node not in inside:
                key = (op_name(node), _REASONS[kinds[node]])
                spent[key] += us * runs[graph.index]
                stack = list((node.meta.get("nn_module_stack") or {}).values())
                modules.setdefault(key, module_path(stack[-1][0]) if stack else "")
    return [
        Skipped(op, modules[op, reason], us, us / step_us if step_us else 0.0, reason)
        for (op, reason), us in spent.items()
        if step_us and us / step_us >= _WORTH_A_LINE
    ]


_REASONS = {
    NodeKind.ANCHOR: "its arguments cannot be named, so it cannot be found again",
    NodeKind.BARRIER: "not memory-bound and not in the FLOP registry, or it mutates or draws random numbers",
    NodeKind.MEMORY: "its arguments cannot be named, or it makes something other than tensors",
    NodeKind.VIEW: "a view: it moves no bytes",
    NodeKind.IDENTITY: "it runs no op",
}
