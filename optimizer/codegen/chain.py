"""Two loop programs in a row: what reduces over columns and then over rows, as a mean of losses or a sum of everything.

The first leaves one value a row (or more, if more is asked of it), the second reduces those.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .lower import Reference, Unsupported, lower, trace
from .program import LoopProgram

aten = torch.ops.aten

REDUCING = {
    aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default, aten.amax.default, aten.amin.default,
    aten.any.dim, aten.any.dims, aten.any.default, aten.all.dim, aten.all.dims, aten.all.default, aten.prod.dim_int,
    aten.var.correction, aten.var_mean.correction, aten._softmax.default, aten._log_softmax.default,
    aten.native_layer_norm.default, aten.linalg_vector_norm.default,
}  # fmt: skip


@dataclass(frozen=True)
class Chain:
    """Programs in their order. feeds: for each, where its inputs come from; outputs: what the whole returns.

    A place is (-1, n) for input n of the region, (k, n) for output n of program k.
    """

    programs: tuple[LoopProgram, ...]
    feeds: tuple[tuple[tuple[int, int], ...], ...]
    outputs: tuple[tuple[int, int], ...]
    inputs: int
    single: bool


def lower_whole(
    reference: Reference, inputs: Sequence[torch.Tensor], alike: Sequence[tuple[int, int]] = ()
) -> LoopProgram:
    """Return the region as one program, and if need be for inputs that are `alike` in shape only; raise Unsupported."""
    try:
        return lower(reference, inputs)
    except Unsupported:
        if not alike:
            raise
    return lower(reference, inputs, alike)


def lower_chain(reference: Reference, inputs: Sequence[torch.Tensor], alike: Sequence[tuple[int, int]] = ()) -> Chain:
    """Return the region as one program, or as two where one cannot; raise Unsupported, of the whole, where neither.

    alike: pairs of inputs that have the same shape wherever the region is met.
    """
    try:
        program = lower_whole(reference, inputs, alike)
    except Unsupported:
        chain = _cut(trace(reference, inputs), inputs)
        if chain is None:
            raise
        return chain
    count = len(inputs)
    outputs = tuple((0, n) for n in range(len(program.outputs)))
    return Chain((program,), (tuple((-1, n) for n in range(count)),), outputs, count, program.single)


def _cut(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Chain | None:
    """Return the two programs that a cut before the last reductions makes of the region, None if none does."""
    _nest_whole_reductions(module)
    reductions = [n for n in module.graph.nodes if n.target in REDUCING]
    last = [r for r in reductions if not any(n in REDUCING for n in (m.target for m in _after([r]) - {r}))]
    for cut in (last, *([r] for r in reversed(reductions))):
        try:
            return _two(module, _late(cut), inputs)
        except Unsupported:
            continue
    return None


def _nest_whole_reductions(module: fx.GraphModule) -> None:
    """Write a sum or mean of everything as one of the last dimension and one of the rest."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target not in (aten.sum.default, aten.mean.default, aten.sum.dim_IntList, aten.mean.dim):
            continue
        source, value = node.args[0], node.meta["val"]
        shape = source.meta["val"].shape
        if value.dim() or len(shape) < 2:
            continue
        pure = aten.sum.dim_IntList if node.target in (aten.sum.default, aten.sum.dim_IntList) else aten.mean.dim
        with graph.inserting_before(node):
            rows = _made(graph, pure, (source, [-1]), {k: v for k, v in node.kwargs.items() if k == "dtype"})
            flat = _made(graph, aten.view.default, (rows, [-1]), {})
            whole = _made(graph, pure, (flat, [0]), {})
        node.replace_all_uses_with(whole)
        graph.erase_node(node)


def _made(graph: fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = target(args[0].meta["val"], *args[1:], **kwargs)
    return node


def _after(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Return the nodes and all that depends on them."""
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found and node.op == "call_function":
            found.add(node)
            stack += node.users
    return found


def _late(cut: Sequence[fx.Node]) -> set[fx.Node]:
    """Return what depends on the reductions `cut`, with the others that it is combined with afterwards."""
    late = _after(cut)
    behind = [i for n in late - set(cut) for i in n.all_input_nodes if i not in late]
    path: list[fx.Node] = []
    while behind:
        node = behind.pop()
        if node in late or node.op != "call_function" or any(u not in late and u not in path for u in node.users):
            continue
        path.append(node)
        late.add(node)
        if node.target not in REDUCING:
            behind += node.all_input_nodes
    return late


def _two(module: fx.GraphModule, late: set[fx.Node], inputs: Sequence[torch.Tensor]) -> Chain:
    nodes = list(module.graph.nodes)
    given = [n for n in nodes if n.op == "placeholder"]
    (returned,) = nodes[-1].args
    single = not isinstance(returned, tuple | list)
    wanted: list[fx.Node] = [returned] if single else list(returned)
    early = [n for n in nodes if n.op == "call_function" and n not in late]
    ordered = [n for n in nodes if n in late]
    crossing = list(dict.fromkeys(i for n in ordered for i in n.all_input_nodes if i not in late))
    middle = [n for n in crossing if n not in given] + [n for n in wanted if n in early and n not in crossing]
    if not middle or not ordered:
        raise Unsupported("nothing to hand on")
    first = lower(_function(given, early, middle), inputs)
    device = inputs[0].device
    fed = [inputs[given.index(n)] if n in given else _empty(n, device) for n in crossing]
    after = [n for n in wanted if n in late]
    made = [(n, first.outputs[middle.index(node)].dims) for n, node in enumerate(crossing) if node not in given]
    alike = [(made[0][0], n) for n, dims in made[1:] if dims == made[0][1]]
    second = lower(_function(crossing, ordered, after), fed, alike)
    feeds = tuple((-1, given.index(n)) if n in given else (0, middle.index(n)) for n in crossing)
    outputs = tuple((1, after.index(n)) if n in late else (0, middle.index(n)) for n in wanted)
    return Chain((first, second), (tuple((-1, n) for n in range(len(inputs))), feeds), outputs, len(inputs), single)


def _function(given: Iterable[fx.Node], nodes: Iterable[fx.Node], returned: Sequence[fx.Node]) -> Callable[..., Any]:
    graph, copied = fx.Graph(), dict[fx.Node, fx.Node]()
    for number, node in enumerate(given):
        copied[node] = graph.placeholder(f"x{number}")
    for node in nodes:
        copied[node] = graph.node_copy(node, copied.__getitem__)
    graph.output(tuple(copied[n] for n in returned))
    graph.eliminate_dead_code()
    return fx.GraphModule({}, graph)


def _empty(node: fx.Node, device: torch.device) -> torch.Tensor:
    value = node.meta["val"]
    return torch.empty_strided(tuple(value.shape), tuple(value.stride()), dtype=value.dtype, device=device)


def joined(chain: Chain, sources: Sequence[str]) -> str:
    """Return one candidate file out of one for each program; each keeps its own names by a suffix."""
    parts = [_suffixed(source, f"_{number}") for number, source in enumerate(sources)]
    names = ", ".join(f"x{n}" for n in range(chain.inputs))
    lines = [f"def kernel({names}):"]
    for number, feeds in enumerate(chain.feeds):
        given = ", ".join(_place(place) for place in feeds)
        made = ", ".join(f"p{number}_{n}" for n in range(len(chain.programs[number].outputs)))
        comma = "" if chain.programs[number].single else ","
        lines.append(f"    {made}{comma} = kernel_{number}({given})")
    returned = ", ".join(_place(place) for place in chain.outputs)
    lines.append(f"    return {returned if chain.single else f'({returned},)'}")
    return "\n\n".join([*parts, "\n".join(lines) + "\n"])


def _place(place: tuple[int, int]) -> str:
    program, number = place
    return f"x{number}" if program < 0 else f"p{program}_{number}"


def _suffixed(source: str, suffix: str) -> str:
    """Return a candidate file with another name for everything it defines, in code and in strings alike."""
    defined = set[str]()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            defined.add(node.name)
        if isinstance(node, ast.Assign):
            defined |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    pattern = re.compile(rf"\b({'|'.join(sorted(defined))})\b")
    return pattern.sub(lambda match: match[1] + suffix, source)
