"""Cut a captured graph into regions: convex groups of memory-bound nodes between anchors, and the anchors themselves.

A node's level is the largest number of anchors and barriers on any path to it. Groups are the connected components
within a level, which are convex by construction: a path that leaves a group passes an anchor or a barrier and
arrives at a higher level. The same function runs at extraction and at swap, so that fingerprints agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import networkx as nx
import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from .fingerprint import fingerprint
from .node_ops import NodeKind, example, is_call, node_kinds


@dataclass(frozen=True)
class Region:
    """A connected, convex piece of a captured graph that one kernel could replace.

    nodes, inputs, outputs: in graph order. inputs are tensors made outside; outputs are tensors used outside.
    """

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    kind: Literal["memory", "anchor"]
    fingerprint: str
    name: str


def find_regions(gm: fx.GraphModule) -> list[Region]:
    """Return the regions of `gm` in graph order; deterministic, and independent of layer count and names."""
    kinds = node_kinds(gm)
    order = {node: i for i, node in enumerate(gm.graph.nodes)}
    groups = [*_memory_groups(kinds, order), *((n,) for n, k in kinds.items() if k is NodeKind.ANCHOR)]
    regions = [r for group in groups if (r := _region(group, kinds, order)) is not None]
    return sorted(regions, key=lambda r: order[r.nodes[-1]])


def _levels(kinds: dict[fx.Node, NodeKind]) -> dict[fx.Node, int]:
    levels: dict[fx.Node, int] = {}
    walls = (NodeKind.ANCHOR, NodeKind.BARRIER)
    for node in kinds:  # graph order: inputs come first
        levels[node] = max((levels[p] + (kinds[p] in walls) for p in node.all_input_nodes if p in levels), default=0)
    return levels


def _memory_groups(kinds: dict[fx.Node, NodeKind], order: dict[fx.Node, int]) -> Iterable[tuple[fx.Node, ...]]:
    levels = _levels(kinds)
    graph: nx.Graph[fx.Node] = nx.Graph()
    inside = [n for n, k in kinds.items() if k in (NodeKind.MEMORY, NodeKind.VIEW, NodeKind.IDENTITY)]
    graph.add_nodes_from(inside)
    members = set(inside)
    for node in inside:
        graph.add_edges_from((p, node) for p in node.all_input_nodes if p in members and levels[p] == levels[node])
    for component in nx.connected_components(graph):
        trimmed = _trim_views(component, kinds)
        for piece in nx.connected_components(graph.subgraph(trimmed)):
            yield tuple(sorted(piece, key=order.__getitem__))


def _trim_views(group: set[fx.Node], kinds: dict[fx.Node, NodeKind]) -> set[fx.Node]:
    """Drop views at the rim, again and again: they move no bytes, and a group without them fits more shapes.

    Only sources and sinks go, so what is left is still convex.
    """
    left = set(group)
    while True:
        rim = {
            n
            for n in left
            if kinds[n] in (NodeKind.VIEW, NodeKind.IDENTITY)
            and (not left.intersection(n.all_input_nodes) or not left.intersection(n.users))
        }
        if not rim:
            return left
        left -= rim


def _region(nodes: tuple[fx.Node, ...], kinds: dict[fx.Node, NodeKind], order: dict[fx.Node, int]) -> Region | None:
    members = set(nodes)
    inputs = tuple(dict.fromkeys(p for n in nodes for p in n.all_input_nodes if p not in members and _is_tensor(p)))
    outputs = tuple(n for n in nodes if any(u not in members for u in n.users))
    if not inputs or not outputs or not all(_is_tensor(n) for n in outputs):
        return None
    kind: Literal["memory", "anchor"] = "anchor" if kinds[nodes[0]] is NodeKind.ANCHOR else "memory"
    text = fingerprint(nodes, inputs, outputs)
    if text is None:
        return None
    return Region(nodes, inputs, outputs, kind, text, _name(nodes, kinds))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(example(node), torch.Tensor)


def _name(nodes: tuple[fx.Node, ...], kinds: dict[fx.Node, NodeKind]) -> str:
    """Join the region's op names, in order, into a short name a person recognises."""
    words = [op_name(n) for n in nodes if kinds[n] in (NodeKind.MEMORY, NodeKind.ANCHOR)]
    short = list(dict.fromkeys(w.strip("_").replace("_", "-") for w in words))
    return "-".join(short[:4]) + ("-etc" if len(short) > 4 else "")


def op_name(node: fx.Node) -> str:
    """Return the name of the function or method that `node` calls."""
    return str(getattr(node.target, "__name__", node.target))


def graph_calls(gm: fx.GraphModule) -> list[fx.Node]:
    """Return the call nodes of `gm` in order."""
    return [n for n in gm.graph.nodes if is_call(n)]


def tensor_leaves(value: object) -> list[torch.Tensor]:
    """Return the tensors of a nested value, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
