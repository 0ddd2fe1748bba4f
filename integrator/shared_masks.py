"""Have Inductor compute the mask of attention once for all layers that compute the same one.

torch turns a bool mask into one that is added, inside each call of attention, so that twelve layers write and read
twelve: at 8x2048 tokens in bf16, 64 MB each. Precondition: a functional ATen graph. Proof: the same ops on the same
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

# How torch's fused attentions name what is added to the scores.
_MASKS = frozenset({"attn_bias", "attn_mask"})


class SharedMasks(CustomGraphPass):
    """`share_masks` as a pass of Inductor's, by which compiled code is cached apart from what it makes without."""

    def __call__(self, graph: fx.Graph) -> None:
        share_masks(graph)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def share_masks(graph: fx.Graph) -> int:
    """Let calls of attention whose masks are equal by computation read one of them; return how many nodes went."""
    calls = {node: mask for node in graph.nodes for mask in _masks(node)}
    on_the_way = _pure_sources(calls.values())
    first: dict[str, fx.Node] = {}
    for node in [n for n in graph.nodes if n in on_the_way]:
        kept = first.setdefault(f"{node.target} {node.args!r} {node.kwargs!r}", node)
        if kept is not node:
            # Elsewhere, in an output above all, it stays a tensor of its own.
            node.replace_all_uses_with(kept, delete_user_cb=lambda user: user in on_the_way or user in calls)
    gone = 0
    for node in reversed(list(graph.nodes)):
        if node in on_the_way and not node.users:
            graph.erase_node(node)
            gone += 1
    return gone


def _masks(node: fx.Node) -> Iterator[fx.Node]:
    if isinstance(node.target, torch._ops.OpOverload):
        for place, argument in enumerate(node.target._schema.arguments):
            if argument.name in _MASKS:
                given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
                if isinstance(given, fx.Node):
                    yield given


def _pure_sources(masks: Iterable[fx.Node]) -> set[fx.Node]:
    """Return the nodes that masks are computed by, as far back as ops give the same for the same and write nothing."""
    found: set[fx.Node] = set()
    waiting = list(masks)
    while waiting:
        node = waiting.pop()
        if node not in found and _is_pure(node):
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found


def _is_pure(node: fx.Node) -> bool:
    op = node.target
    return (
        isinstance(op, torch._ops.OpOverload)
        and not op._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in op.tags
        and op.overloadpacket is not torch.ops.aten.empty
    )
