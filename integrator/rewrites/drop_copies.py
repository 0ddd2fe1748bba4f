"""Drop copies that copy nothing new: a concatenation with empty tensors, which a cache that was just made begins with.

Precondition: one tensor among the parts has elements, and nothing writes into it or the copy. The graph's outputs keep
their copies: a user may write into them.
"""

from __future__ import annotations

import torch
from torch import fx

from ...extractor.node_ops import example
from ..writes import find_writes
from .graph_edit import drop_unused, output_node
from .rewrite import Applied, Notes, Rewrite, Setting

_CONCATENATIONS = frozenset({torch.cat, torch.concat, torch.concatenate})


def _apply(gm: fx.GraphModule, setting: Setting, notes: Notes) -> None:
    end, written = output_node(gm), find_writes(gm).memory
    for node in list(gm.graph.nodes):
        kept = _only_part(node)
        if kept is None or kept in written or node in written:
            continue
        readers = [user for user in node.users if user is not end and _reads_only(user)]
        if not readers:
            continue
        node.replace_all_uses_with(kept, delete_user_cb=lambda user: user in readers)  # noqa: B023 - used at once
        notes.applied.append(Applied(DROP_COPIES.name, node.name, "a concatenation of one tensor with empty ones"))
        drop_unused(gm, [node])


def _only_part(node: fx.Node) -> fx.Node | None:
    """Return the one part of a concatenation that has elements, of the same dtype and shape as the whole."""
    if node.op != "call_function" or node.target not in _CONCATENATIONS:
        return None
    parts = node.args[0] if node.args else node.kwargs.get("tensors")
    if not isinstance(parts, list | tuple) or not all(isinstance(p, fx.Node) for p in parts):
        return None
    full = [p for p in parts if isinstance(p, fx.Node) and not _is_empty(example(p))]
    if len(full) != 1 or len(parts) < 2:
        return None
    one, whole = example(full[0]), example(node)
    same = isinstance(one, torch.Tensor) and one.shape == whole.shape and one.dtype == whole.dtype
    return full[0] if same else None


def _is_empty(value: object) -> bool:
    return isinstance(value, torch.Tensor) and any(type(size) is int and size == 0 for size in value.shape)


def _reads_only(user: fx.Node) -> bool:
    """Whether `user` is attention or the like: it reads the tensor, and gives nothing that shares its memory."""
    return user.op == "call_function" and user.target is torch.nn.functional.scaled_dot_product_attention


DROP_COPIES = Rewrite("drop-copies", "attention reads what a copy was made of", _apply)
