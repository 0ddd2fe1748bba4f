"""A problem's reference on a device, called with tensors of any size, and its graph as one region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from ..models.errors import InputError
from ..models.trial import explained, first_line
from .capture import CapturedGraph, capture_settings
from .fingerprint import fingerprint
from .node_ops import NodeKind, example, is_call, node_kinds
from .problem import Problem
from .regions import Region


@dataclass(frozen=True)
class Function:
    """A reference where it will run. names: of the task's inputs, the arguments' before the module's own (`paths`)."""

    problem: Problem
    device: str
    dtype: torch.dtype | None
    names: tuple[str, ...]
    paths: tuple[str, ...]

    @property
    def file(self) -> Path | None:
        path = Path(self.problem.origin)
        return path.resolve() if path.suffix == ".py" else None

    def __call__(self, arguments: Sequence[Any], tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Return the leaves of what the reference returns with `tensors` in place of its own."""
        given, own = iter(tensors), tensors[len(tensors) - len(self.paths) :]
        args = [next(given) if isinstance(a, torch.Tensor) else a for a in arguments]
        reference, consts = self.problem.reference, dict(self.problem.consts)
        if isinstance(reference, nn.Module):
            state = dict(zip(self.paths, own, strict=True))
            return tuple(tree_leaves(torch.func.functional_call(reference, state, tuple(args), consts)))
        return tuple(tree_leaves(reference(*args, **consts)))

    def inputs(self, seed: int, index: int) -> tuple[tuple[Any, ...], tuple[torch.Tensor, ...]]:
        """Return the arguments of one shape and the task's inputs, on the device; strides and aliasing stay."""
        arguments = _arguments(self.problem, seed, index)
        given = [a for a in arguments if isinstance(a, torch.Tensor)]
        own = _own(self.problem.reference)
        weights = [nn.Parameter(own[path], requires_grad=False) for path in self.paths]
        tensors = moved([*given, *weights], self.device, self.dtype)
        if len(given) + len(self.paths) != len(self.names):
            raise InputError(
                f"{self.problem.origin}: shape {self.problem.shapes[index][0]}: inputs returns {len(given)} tensors, "
                f"the first shape {len(self.names) - len(self.paths)}; all shapes take the same"
            )
        return arguments, tuple(tensors)


def function_of(problem: Problem, device: str, dtype: torch.dtype | None) -> Function:
    """Return the problem's reference with names for all inputs; raise InputError where `inputs` returns none."""
    import inspect

    arguments = _arguments(problem, 0, 0)
    reference = problem.reference.forward if isinstance(problem.reference, nn.Module) else problem.reference
    try:
        bound = inspect.signature(reference).bind(*arguments, **problem.consts)
    except TypeError as error:
        raise InputError(f"{problem.origin}: what inputs returns does not fit reference: {error}") from error
    names: list[str] = []
    for name, value in bound.arguments.items():
        if isinstance(value, torch.Tensor):
            names.append(name)
        elif isinstance(value, tuple) and bound.signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{name}{i}" for i, each in enumerate(value) if isinstance(each, torch.Tensor)]
    if not names:
        raise InputError(f"{problem.origin}: inputs must return at least one tensor, got none")
    paths = tuple(_own(problem.reference))
    for path in paths:
        word = path.replace(".", "_")
        while word in names or not word.isidentifier():
            word = f"w_{word}"
        names.append(word)
    return _without_unused(Function(problem, device, dtype, tuple(names), paths), arguments)


def _without_unused(function: Function, arguments: Sequence[Any]) -> Function:
    """Return the function without parameters and buffers that the call does not read (a count of batches)."""
    if not function.paths:
        return function
    _, tensors = function.inputs(0, 0)
    graph = _captured(function, function.problem.origin, arguments, tensors)
    read = {id(v) for v, n in zip(graph.inputs, _placeholders(graph), strict=True) if n.users}
    first = len(function.names) - len(function.paths)
    kept = [i for i in range(len(function.paths)) if id(tensors[first + i]) in read]
    names = (*function.names[:first], *(function.names[first + i] for i in kept))
    return replace(function, names=names, paths=tuple(function.paths[i] for i in kept))


def _own(reference: Any) -> dict[str, torch.Tensor]:
    if not isinstance(reference, nn.Module):
        return {}
    return {**dict(reference.named_parameters()), **dict(reference.named_buffers())}


def _arguments(problem: Problem, seed: int, index: int) -> tuple[Any, ...]:
    where = f"{problem.origin}: shape {problem.shapes[index][0]}: inputs"
    try:
        given = problem.inputs(seed, index)
    except Exception as error:  # the user's function may raise anything
        raise explained(error, where) from error
    if not isinstance(given, tuple | list):
        raise InputError(f"{where}: expected a tuple of tensors, got {type(given).__name__}")
    odd = [v for v in given if not isinstance(v, torch.Tensor | bool | int | float | str | None)]
    if odd:
        raise InputError(f"{where}: expected tensors (numbers are constants), got a {type(odd[0]).__name__}")
    return tuple(given)


def moved(tensors: Sequence[torch.Tensor], device: str, dtype: torch.dtype | None) -> list[torch.Tensor]:
    """Return the tensors on `device`, floats as `dtype`: strides, offsets, shared storages and Parameters stay so."""
    bases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
    made = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        key = (storage.data_ptr() if storage.nbytes() else -1 - len(bases), tensor.dtype)
        if key not in bases:
            flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            flat.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
            target = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
            bases[key] = flat.detach().to(device=device, dtype=target, copy=True)
        view = bases[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        made.append(nn.Parameter(view, requires_grad=False) if isinstance(tensor, nn.Parameter) else view)
    return made


def capture_function(
    function: Function, where: str, arguments: Sequence[Any], tensors: Sequence[torch.Tensor]
) -> tuple[CapturedGraph, Region]:
    """Return the reference's one graph and the whole of it as a region whose inputs are `tensors`, in order.

    Raises InputError where Dynamo needs several graphs, where an input is not used or an output is one as it came.
    """
    graph = _captured(function, where, arguments, tensors)
    return graph, _whole(function, where, graph, tensors)


def _captured(
    function: Function, where: str, arguments: Sequence[Any], tensors: Sequence[torch.Tensor]
) -> CapturedGraph:
    graphs: list[CapturedGraph] = []

    def backend(gm: fx.GraphModule, _: Any) -> Any:
        graph = CapturedGraph(len(graphs), gm, [])
        graphs.append(graph)

        def run(*args: Any) -> Any:
            graph.inputs = list(args)
            return gm.forward(*args)

        return run

    torch._dynamo.reset()
    with capture_settings():
        compiled = torch.compile(function.__call__, backend=backend, fullgraph=True)
        try:
            compiled(arguments, list(tensors))
        except torch._dynamo.exc.TorchDynamoException as error:
            raise InputError(
                f"{where}: reference cannot be captured as one graph: {first_line(error)}; "
                "leave out what branches on values, prints or calls other libraries"
            ) from error
    if len(graphs) != 1:
        raise InputError(f"{where}: reference runs no op of torch, so there is nothing to make faster")
    graphs[0].gm.graph.eliminate_dead_code()
    graphs[0].gm.recompile()
    return graphs[0]


def _placeholders(graph: CapturedGraph) -> list[fx.Node]:
    return [n for n in graph.gm.graph.nodes if n.op == "placeholder"]


def _whole(function: Function, where: str, graph: CapturedGraph, tensors: Sequence[torch.Tensor]) -> Region:
    placeholders = _placeholders(graph)
    by_tensor = {id(value): node for node, value in zip(placeholders, graph.inputs, strict=True)}
    outputs = tuple(tree_leaves(graph.gm.graph.output_node().args[0]))
    for name, tensor in zip(function.names, tensors, strict=True):
        node = by_tensor.get(id(tensor))
        if node is None or not node.users:
            raise InputError(f"{where}: reference does not use its input {name}; take it away")
    inputs = tuple(by_tensor[id(t)] for t in tensors)
    others = [n for n in placeholders if n not in inputs and n.users]
    others += [n for n in graph.gm.graph.nodes if n.op == "get_attr"]
    if others:
        raise InputError(
            f"{where}: reference reads a tensor that is no input ({others[0].name}); give it through inputs, or "
            "make it a parameter or buffer of Model"
        )
    nodes = tuple(n for n in graph.gm.graph.nodes if is_call(n))
    kinds = node_kinds(graph.gm).values()
    text = fingerprint(nodes, inputs, outputs)
    if text is None:
        raise InputError(f"{where}: reference has an argument that cannot be named, such as a function of its own")
    kind = "anchor" if NodeKind.ANCHOR in kinds else "memory"
    if not all(isinstance(example(n), torch.Tensor) for n in outputs):
        raise InputError(f"{where}: reference returns something other than tensors it computed")
    return Region(nodes, inputs, outputs, "anchor" if kind == "anchor" else "memory", text, function.problem.name)
