"""Turn a reference, from a file or from Python, into a task that carries all that a captured one does.

The reference is captured as one Dynamo graph a shape; the whole graph is the region. Knows nothing of models or runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from ..models.errors import InputError, SpecError
from ..models.trial import explained
from ..profiler.limits import measure
from ..profiler.recording import Limits
from .capture import CapturedGraph
from .captured_function import Function, capture_function, function_of
from .fingerprint import fingerprint
from .floor import cost
from .node_times import time_nodes
from .problem import Problem, read_problem
from .reference import region_module
from .regions import Region, op_name
from .task import ShapeCase, Site, Task
from .task_inputs import describe
from .write_task import task_symbols, write_task

# A size is changed to this, or to one more where it is this already, to see whether the reference means the same.
_ANOTHER_SIZE = 5


@dataclass(frozen=True)
class _Case:
    """One shape: the arguments of the call, the tensors among them and the module's own, and the graph they gave."""

    name: str
    weight: float
    arguments: tuple[Any, ...]
    tensors: tuple[torch.Tensor, ...]
    answer: tuple[torch.Tensor, ...]
    graph: CapturedGraph
    region: Region
    module: fx.GraphModule


def new_task(
    source: Path | str | Problem,
    out: Path | str,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    seed: int = 0,
    limits: Limits | None = None,
) -> Task:
    """Write the task of a reference to the folder `out`, and return its record.

    source: a Python file in our form or KernelBench's, or a Problem. dtype: of all floating inputs and weights, None
    for those the source has. limits: of the device, None to measure (or read) them. Weights of shapes are calls a step.
    Raises SpecError for a file of neither form or a folder in use, ModelRaised where the reference raises, InputError
    where it cannot be one task.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SpecError(f"{out}: exists and is not empty; delete it or choose another --out")
    problem = source if isinstance(source, Problem) else read_problem(Path(source), seed)
    function = function_of(problem, device, dtype)
    with torch.no_grad():
        cases = [_case(function, index, seed) for index in range(len(problem.shapes))]
        chosen = _common(function, cases)
        task = _record(function, cases, chosen, limits or measure(device))
        task, title = _with_symbols(function, task, cases, chosen), f"{problem.name}: made from {problem.origin}."
    write_task(out, task, chosen.module, [case.tensors for case in cases], title)
    return task


def _case(function: Function, index: int, seed: int) -> _Case:
    name, weight = function.problem.shapes[index]
    where = f"{function.problem.origin}: shape {name}"
    arguments, tensors = function.inputs(seed, index)
    answer = _answer(function, where, arguments, tensors)
    again = _answer(function, where, arguments, tensors)
    if not _alike(answer, again):
        raise InputError(f"{where}: reference gives two answers for the same inputs; random numbers cannot be judged")
    graph, region = capture_function(function, where, arguments, tensors)
    region = _in_order(where, region, _named_module(function, graph, region).forward(*tensors), answer)
    return _Case(name, weight, arguments, tensors, answer, graph, region, _named_module(function, graph, region))


def _answer(
    function: Function, where: str, arguments: Sequence[Any], tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Return what the reference returns, as a flat tuple; raise InputError where it holds anything but tensors."""
    kept = [t.detach().clone() for t in tensors]
    try:
        answer = function(arguments, tensors)
    except Exception as error:  # the reference is the user's code and may raise anything
        raise explained(error, f"{where}: reference", near=function.file) from error
    if not answer or not all(isinstance(leaf, torch.Tensor) for leaf in answer):
        got = ", ".join(type(leaf).__name__ for leaf in answer) or "nothing"
        raise InputError(f"{where}: reference must return a tensor or several, got {got}")
    changed = [n for n, t, k in zip(function.names, tensors, kept, strict=True) if not _alike((t,), (k,))]
    if changed:
        raise InputError(f"{where}: reference changes its input {changed[0]} in place, which no kernel may; copy it")
    return answer


def _in_order(where: str, region: Region, made: Sequence[torch.Tensor], answer: Sequence[torch.Tensor]) -> Region:
    """Return the region with its outputs as the reference returns them: Dynamo has an order of its own, none twice."""
    places = [next((i for i, one in enumerate(made) if _alike((one,), (leaf,))), None) for leaf in answer]
    if None in places:
        raise InputError(
            f"{where}: reference's output {places.index(None)} is not what its graph computes; return tensors it "
            "computed, not an input or a constant"
        )
    outputs = tuple(region.outputs[i] for i in places if i is not None)
    text = fingerprint(region.nodes, region.inputs, outputs)
    assert text is not None, "it had one with its outputs in another order"
    return replace(region, outputs=outputs, fingerprint=text)


def _named_module(function: Function, graph: CapturedGraph, region: Region) -> fx.GraphModule:
    """Return the region as a module whose arguments bear the names of the reference's own."""
    module = region_module(graph.gm, region)
    holders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for holder, name in zip(holders, function.names, strict=True):
        holder.target = name
        holder._rename(name)
    module.recompile()
    return module


def _common(function: Function, cases: Sequence[_Case]) -> _Case:
    """Return a case whose graph gives the reference's answers for every shape.

    Which integer is a size is told by comparing it with the input's sizes; where two are equal by chance, one shape's
    graph may be wrong for another shape.
    """
    wrong = [[c.name for c in cases if not _agrees(chosen.module, c.tensors, c.answer)] for chosen in cases]
    for chosen, other in zip(cases, wrong, strict=True):
        if not other:
            return chosen
    raise InputError(
        f"{function.problem.origin}: shapes {cases[0].name} and {wrong[0][0]} run different computations "
        "(a number made from a size, or a branch on one); make a task of each"
    )


def _agrees(module: fx.GraphModule, tensors: Sequence[torch.Tensor], answer: Sequence[torch.Tensor]) -> bool:
    try:
        got = module.forward(*tensors)
    except (RuntimeError, IndexError, ValueError, TypeError):  # what torch raises where sizes do not fit
        return False
    return _alike(got, answer)


def _alike(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> bool:
    """Whether tensors are equal but for the order of a sum; nan equals nan."""
    return len(got) == len(wanted) and all(
        g.shape == w.shape and g.dtype == w.dtype and torch.allclose(g, w, rtol=1e-5, atol=1e-7, equal_nan=True)
        if g.is_floating_point() or g.is_complex()
        else torch.equal(g, w)
        for g, w in zip(got, wanted, strict=True)
    )


def _record(function: Function, cases: Sequence[_Case], chosen: _Case, limits: Limits) -> Task:
    problem = function.problem
    costs = [cost(c.region, c.module, limits) for c in cases]
    measured = [time_nodes(c.graph, function.device) for c in cases]
    times = [sum(m.us.values()) for m in measured]
    eager = sum(us * c.weight for us, c in zip(times, cases, strict=True))
    floor = sum(one.floor_us * c.weight for one, c in zip(costs, cases, strict=True))
    ops = tuple(op_name(n) for n in chosen.region.nodes)
    kind = type(problem.reference).__name__ if isinstance(problem.reference, nn.Module) else "function"
    return Task(
        name=problem.name,
        fingerprint=chosen.region.fingerprint,
        kind=chosen.region.kind,
        device=function.device,
        ops=ops,
        inputs=function.names,
        outputs=len(chosen.region.outputs),
        cases=tuple(
            ShapeCase(c.name, describe(c.region, function.names, c.tensors, c.name), 1, c.weight, us)
            for c, us in zip(cases, times, strict=True)
        ),
        sites=(Site("", kind, ops, problem.origin, 0),),
        eager_us=eager,
        floor_us=floor,
        share=1.0,
        ceiling=max(1.0, eager / floor) if floor else 1.0,
        bytes=int(sum(one.bytes * c.weight for one, c in zip(costs, cases, strict=True))),
        flops=int(sum(one.flops * c.weight for one, c in zip(costs, cases, strict=True))),
        kernels=tuple(sorted({name for m in measured for names in m.kernels.values() for name in names})),
    )


def _with_symbols(function: Function, task: Task, cases: Sequence[_Case], chosen: _Case) -> Task:
    """Return the task with the sizes at which its graph still is the reference, and a note for each that was not."""
    kept, notes = [], list(task.notes)
    for symbol in task_symbols(task, chosen.module):
        if _means_the_same(function, chosen, symbol):
            kept.append(symbol)
        else:
            places = ", ".join(f"{task.inputs[i]}[{d}]" for i, d in symbol)
            notes.append(
                f"the size {places} is fixed: at another one the reference computes something else, or nothing"
            )
    return replace(task, size_symbols=tuple(kept), notes=tuple(notes))


def _means_the_same(function: Function, case: _Case, symbol: tuple[tuple[int, int], ...]) -> bool:
    tensors = list(case.tensors)
    for which, dim in symbol:
        old = tensors[which].shape[dim]
        new = _ANOTHER_SIZE + (old == _ANOTHER_SIZE)
        if not old:
            return False
        rows = torch.arange(new, device=tensors[which].device) % old
        tensors[which] = tensors[which].index_select(dim, rows)
    try:
        wanted = function(case.arguments, tensors)
    except Exception:  # the reference is the user's code: sizes that mean nothing to it raise anything
        return False
    return _agrees(case.module, tensors, wanted)
