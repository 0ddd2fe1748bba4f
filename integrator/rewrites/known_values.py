"""Compute the nodes of a captured graph whose values depend on shapes alone, by running them once.

What is computed from an argument is data and never has a value here, unless the caller says which one it is to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from ...extractor.node_ops import example, is_call, ops_of
from ..writes import find_writes

# A value larger than this is computed where it is used: folding it would only hold memory (a mask of 16384 x 16384).
MOST_BYTES = 1 << 28


def known_values(gm: fx.GraphModule, given: Mapping[fx.Node, torch.Tensor] | None = None) -> dict[fx.Node, Any]:
    """Return node to value for `given` and all that follows from it, from shapes and constants; in order.

    Random, writing and impure nodes have none, nor has anything that a symbolic size or a parameter goes into, or whose
    memory is written into.
    """
    written = find_writes(gm).memory
    values: dict[fx.Node, Any] = {node: value for node, value in (given or {}).items() if node not in written}
    with unset_fake_temporarily(), torch.no_grad():
        for node in gm.graph.nodes:
            if is_call(node) and node.op != "call_module" and node not in written and _follows(node, values):
                found = _value(node, values)
                if found is not None:
                    values[node] = found
    return values


def _follows(node: fx.Node, values: Mapping[fx.Node, Any]) -> bool:
    made = example(node)
    tensors = made if isinstance(made, tuple | list) else (made,)
    if not all(isinstance(t, FakeTensor) and _small(t) for t in tensors):
        return False
    if not all(n in values for n in node.all_input_nodes):
        return False
    seen = ops_of(node)
    return seen is not None and not any(one.stays for one in seen)


def _small(tensor: torch.Tensor) -> bool:
    """Whether the tensor's size is a number, and not a large one."""
    sizes = (*tensor.shape, *tensor.stride())
    return all(type(size) is int for size in sizes) and tensor.numel() * tensor.element_size() <= MOST_BYTES


def _value(node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]
