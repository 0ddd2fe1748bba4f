"""Cut a captured graph into regions: convex groups of memory-bound nodes between anchors, and the anchors themselves.

A node's level is the largest number of anchors and barriers on any path to it. Groups are the connected components
within a level, which are convex by construction: a path that leaves a group passes an anchor or a barrier and
arrives at a higher level. A group that does nothing but map the one result of an anchor, element by element, is the
anchor's epilogue and stands in its region. The same function runs at extraction and at swap: fingerprints agree.
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
from .node_ops import NodeKind, example, is_pointwise, node_kinds


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
    groups = _with_epilogues([*_memory_groups(kinds, order)], kinds)
    regions = [r for group in groups if (r := _region(group, kinds, order)) is not None]
    return sorted(regions, key=lambda r: order[r.nodes[-1]])


def _with_epilogues(memory: list[tuple[fx.Node, ...]], kinds: dict[fx.Node, NodeKind]) -> list[tuple[fx.Node, ...]]:
    """Return the groups and the anchors, each epilogue joined to its anchor."""
    alone = {n: (n,) for n, k in kinds.items() if k is NodeKind.ANCHOR}
    groups: list[tuple[fx.Node, ...]] = []
    for group in memory:
        before = _path_from_anchor(group, kinds)
        if before:
            del alone[before[0]]
        groups.append((*before, *group))
    return [*groups, *alone.values()]


def _path_from_anchor(group: tuple[fx.Node, ...], kinds: dict[fx.Node, NodeKind]) -> tuple[fx.Node, ...]:
    """Return the anchor whose epilogue `group` is and the views between; empty where it is none's."""
    members = set(group)
    inputs = {p for n in group for p in n.all_input_nodes if p not in members}
    if len(inputs) != 1 or not all(is_pointwise(n) for n in group if kinds[n] is NodeKind.MEMORY):
        return ()
    path = [inputs.pop()]
    while set(path[0].users) <= members:
        kind = kinds.get(path[0])
        if kind is NodeKind.ANCHOR:
            return tuple(path)
        if kind not in (NodeKind.VIEW, NodeKind.IDENTITY) or len(path[0].all_input_nodes) != 1:
            return ()
        members.add(path[0])
        path.insert(0, path[0].all_input_nodes[0])
    return ()


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
        for part in _part_shared_producers(graph.subgraph(component), kinds):
            for piece in nx.connected_components(graph.subgraph(_trim_views(part, kinds))):
                yield tuple(sorted(piece, key=order.__getitem__))


def _part_shared_producers(group: nx.Graph[fx.Node], kinds: dict[fx.Node, NodeKind]) -> list[set[fx.Node]]:
    """Split off small producers that other groups read, too: a rotary table made once, broadcast into every layer.

    Such a value is materialised anyway, and inside the first reader's group it would make that layer unlike the others.
    """
    parted = nx.Graph(group)
    for node in group:
        for producer in node.all_input_nodes:
            if producer in group and _elements(producer) < _elements(node) and _read_outside(producer, group, kinds):
                parted.remove_edge(producer, node)
    parts = list(nx.connected_components(parted))
    home = {node: i for i, part in enumerate(parts) for node in part}
    flow: nx.DiGraph[int] = nx.DiGraph()
    flow.add_edges_from(
        (home[p], home[n]) for n in group for p in n.all_input_nodes if p in home and home[p] != home[n]
    )
    return parts if nx.is_directed_acyclic_graph(flow) else [set(group)]


def _read_outside(node: fx.Node, group: nx.Graph[fx.Node], kinds: dict[fx.Node, NodeKind]) -> bool:
    """Whether `node`, or what it is a view of, has readers outside `group`, looking through views."""
    while kinds[node] is NodeKind.VIEW and node.all_input_nodes and node.all_input_nodes[0] in group:
        node = node.all_input_nodes[0]
    readers = list(node.users)
    while readers:
        reader = readers.pop()
        if reader not in group:
            return True
        if kinds[reader] is NodeKind.VIEW:
            readers.extend(reader.users)
    return False


def _elements(node: fx.Node) -> int:
    return sum(hint(leaf.numel()) for leaf in tree_leaves(example(node)) if isinstance(leaf, torch.Tensor))


def hint(size: int | torch.SymInt) -> int:
    """Return the size a symbol had while tracing, without adding a guard."""
    return size if isinstance(size, int) else int(size.node.hint or 1)


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
