"""Split a graph in two: what may write into memory that is used again, and what makes the outputs in fresh memory.

A CUDA graph writes each result where it wrote the last one. Its results must leave it before the next call: as a copy,
or, where the copy would be dear, by running the last matmul outside (a language model's logits are 500 MB, what goes
into the head is 8). Views run outside, too, so that outputs that share memory still do. All that writes is inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from ..extractor.node_ops import NodeKind, carry_sources, example, is_call, is_weight, node_kinds
from .writes import Writes, find_writes

MOVE_NOTHING = (NodeKind.VIEW, NodeKind.IDENTITY)


@dataclass(frozen=True)
class Split:
    """inner: takes all inputs, returns a tuple. outer: takes the inner's results, then the inputs at `inputs`.

    copied: for each result of the inner, whether the outer's outputs may share its memory. written: positions of the
    inputs whose memory the inner writes into.
    """

    inner: fx.GraphModule
    outer: fx.GraphModule
    inputs: tuple[int, ...]
    copied: tuple[bool, ...]
    written: tuple[int, ...] = ()


def split(gm: fx.GraphModule) -> Split:
    """Return `gm` in two parts; what it gives back must be no input that it writes into. It is left as it was."""
    kinds, writes = node_kinds(gm), find_writes(gm)
    outside = _outside(gm, kinds, writes)
    end = gm.graph.output_node()
    results: dict[fx.Node, bool] = {}
    direct: list[fx.Node] = []
    for node in gm.graph.nodes:
        if node not in outside and node is not end:
            continue
        shares = node is end or kinds.get(node) in MOVE_NOTHING
        for source in node.all_input_nodes:
            if source.op == "placeholder":
                direct.append(source)
            elif source not in outside and source.op != "get_attr":
                results[source] = results.get(source, False) or (shares and _is_tensor(source))
    direct = list(dict.fromkeys(direct))
    places = {n: i for i, n in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")}
    return Split(
        _inner(gm, list(results), writes),
        _outer(gm, list(results), direct, outside),
        tuple(places[n] for n in direct),
        tuple(results.values()),
        tuple(i for n, i in places.items() if n in writes.memory),
    )


def _outside(gm: fx.GraphModule, kinds: Mapping[fx.Node, NodeKind], writes: Writes) -> set[fx.Node]:
    """Return the views that lead to outputs, and the matmuls behind them that write more than they read."""
    end = gm.graph.output_node()
    outside: set[fx.Node] = set()
    made_by: list[fx.Node] = []
    waiting = list(end.all_input_nodes)
    while waiting:
        node = waiting.pop()
        if node in outside or not is_call(node):
            continue
        if kinds[node] in MOVE_NOTHING:
            outside.add(node)
            waiting.extend(node.all_input_nodes)
        else:
            made_by.append(node)
    for node in made_by:
        read = sum(_bytes(n) for n in node.all_input_nodes if not is_weight(n))
        alone = all(u in outside or u is end for u in node.users)
        still = writes.memory.isdisjoint((node, *node.all_input_nodes))
        if kinds[node] is NodeKind.ANCHOR and _bytes(node) > read and alone and still:
            outside.add(node)
    return outside


def _bytes(node: fx.Node) -> int:
    """Return the bytes of a node's tensors; those of unknown size count as none."""
    leaves = [leaf for leaf in tree_leaves(example(node)) if isinstance(leaf, torch.Tensor)]
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if type(leaf.numel()) is int)


def _is_tensor(node: fx.Node) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(example(node)))


def _inner(gm: fx.GraphModule, results: list[fx.Node], writes: Writes) -> fx.GraphModule:
    needed: set[fx.Node] = set()
    waiting = [*results, *writes.at]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node in needed or node.op == "placeholder":
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[n] for n in results))
    carry_sources(copies)
    return fx.GraphModule(gm, graph)


def _outer(gm: fx.GraphModule, results: list[fx.Node], direct: list[fx.Node], outside: set[fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for number, node in enumerate((*results, *direct)):
        copies[node] = graph.placeholder(f"given_{number}")
        copies[node].meta = dict(node.meta)
    for node in gm.graph.nodes:
        constant = node.op == "get_attr" and any(u in outside or u.op == "output" for u in node.users)
        if node in outside or constant:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    made: Any = fx.node.map_arg(gm.graph.output_node().args[0], lambda n: copies[n])
    graph.output(made)
    return fx.GraphModule(gm, graph)
