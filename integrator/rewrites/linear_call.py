"""Read linear layers of a captured graph: calls of torch's linear with the weights they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import fx

from ...extractor.node_ops import example, is_weight


@dataclass(frozen=True)
class LinearCall:
    """One call: input (..., width), weight (rows, width) and bias (rows,) or None, both inputs of the graph."""

    node: fx.Node
    input: fx.Node
    weight: fx.Node
    bias: fx.Node | None

    @property
    def rows(self) -> int:
        return int(example(self.weight).shape[0])


def linear_calls(gm: fx.GraphModule) -> Iterator[LinearCall]:
    """Yield the linear layers whose weight and bias are parameters that the graph is given."""
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target is not torch.nn.functional.linear:
            continue
        given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | dict(node.kwargs)
        value, weight, bias = (given.get(name) for name in ("input", "weight", "bias"))
        if isinstance(value, fx.Node) and _is_parameter(weight) and (bias is None or _is_parameter(bias)):
            yield LinearCall(node, value, weight, bias)


def _is_parameter(node: Any) -> TypeGuard[fx.Node]:
    return isinstance(node, fx.Node) and node.op == "placeholder" and is_weight(node)


def positions(gm: fx.GraphModule) -> dict[fx.Node, int]:
    """Return the place of each of the graph's inputs."""
    return {node: i for i, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")}
