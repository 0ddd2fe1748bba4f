"""Small edits of a captured graph that keep its example values true."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from ...extractor.node_ops import example, is_call, node_kinds, ops_of
from ..writes import may_alias

_KEPT = ("nn_module_stack", "source_fn_stack", "stack_trace")


def insert_call(
    before: fx.Node, target: Callable[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> fx.Node:
    """Return a new call ahead of `before`, with the place in the model and the example value it has there.

    Raises what the call raises on the example values: a call that does not fit leaves no node.
    """
    graph = before.graph
    op = "call_method" if isinstance(target, str) else "call_function"
    with graph.inserting_before(before):
        node = graph.create_node(op, target, args, kwargs or {})
    node.meta = {key: before.meta[key] for key in _KEPT if key in before.meta}
    try:
        node.meta["example_value"] = fake_result(node)
    except Exception:
        graph.erase_node(node)
        raise
    return node


def fake_result(node: fx.Node) -> Any:
    """Return what `node` gives on the example values of its inputs."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), example)
    with fake_mode_of(node) or contextlib.nullcontext(), torch.no_grad():
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]


def fake_mode_of(node: fx.Node) -> FakeTensorMode | None:
    for value in (example(n) for n in node.all_input_nodes):
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch._subclasses.FakeTensor):
                return leaf.fake_mode
    return None


def constant(gm: fx.GraphModule, before: fx.Node, value: torch.Tensor, like: fx.Node | None = None) -> fx.Node:
    """Return a node for `value`, kept as a buffer of the graph. like: a node with the same example value."""
    name = next(n for i in itertools.count() if not hasattr(gm, n := f"hotswap_constant_{i}"))
    gm.register_buffer(name, value, persistent=False)
    with gm.graph.inserting_before(before):
        node = gm.graph.get_attr(name)
    if like is not None:
        node.meta["example_value"] = example(like)
    else:
        mode = next((m for n in gm.graph.nodes if (m := fake_mode_of(n)) is not None), None)
        node.meta["example_value"] = mode.from_tensor(value, static_shapes=True) if mode is not None else value
    return node


def drop_unused(gm: fx.GraphModule, nodes: Iterable[fx.Node]) -> None:
    """Erase those of `nodes` that nobody reads, and what then is not read any more, where that shows nowhere."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node.users or node.graph is not gm.graph or getattr(node, "_erased", False):
            continue
        if not (node.op == "get_attr" or (is_call(node) and _shows_nowhere(node))):
            continue
        inputs = node.all_input_nodes
        gm.graph.erase_node(node)
        waiting.extend(inputs)


def _shows_nowhere(node: fx.Node) -> bool:
    seen = ops_of(node)
    return seen is not None and not any(one.stays for one in seen)


def output_node(gm: fx.GraphModule) -> fx.Node:
    return gm.graph.output_node()


def output_aliases(gm: fx.GraphModule) -> set[fx.Node]:
    """Return the nodes whose memory the graph's outputs may be: the outputs, and what they are views of."""
    kinds = node_kinds(gm)
    found: set[fx.Node] = set()
    waiting = list(output_node(gm).all_input_nodes)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if not is_call(node) or may_alias(kinds.get(node)):
            waiting.extend(node.all_input_nodes)
    return found
