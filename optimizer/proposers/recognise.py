"""See what a reference is by the ATen ops it runs, so that a template is offered only where it computes the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

aten = torch.ops.aten

_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.alias.default})


def traced(reference: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> fx.Graph | None:
    """Return the ATen graph of one call, dead code gone; None where it cannot be traced on fake values."""

    def called(*args: torch.Tensor) -> Any:  # hides arguments with defaults, which make_fx would ask for
        return reference(*args)

    try:
        with torch.no_grad():
            gm = make_fx(called, tracing_mode="fake")(*inputs)
    except RuntimeError:  # shapes that depend on values, ops without a fake: nothing a template is for
        return None
    gm.graph.eliminate_dead_code()
    return gm.graph


def results(graph: fx.Graph) -> list[Any]:
    """Return the nodes a graph returns, in order; one tensor is a list of one."""
    (returned,) = next(n for n in graph.nodes if n.op == "output").args
    return list(returned) if isinstance(returned, tuple | list) else [returned]


def input_position(node: Any) -> int | None:
    """Return which input `node` is, None where it is something else."""
    if not isinstance(node, fx.Node) or node.op != "placeholder":
        return None
    return [n for n in node.graph.nodes if n.op == "placeholder"].index(node)


def value(node: Any) -> torch.Tensor:
    """Return the fake tensor traced for `node`."""
    tensor: torch.Tensor = node.meta["val"]
    return tensor


def without_views(node: Any) -> Any:
    """Return what `node` shows another shape of, row for row: the last dimension stays whole."""
    while (
        isinstance(node, fx.Node) and node.target in _VIEWS and value(node).shape[-1:] == value(node.args[0]).shape[-1:]
    ):
        node = node.args[0]
    return node


def without_widening(node: Any) -> Any:
    """Return what `node` is a wider copy of, through views: a cast to more bits loses nothing."""
    while True:
        node = without_views(node)
        if not (isinstance(node, fx.Node) and node.target in (aten._to_copy.default, aten.to.dtype)):
            return node
        source = node.args[0]
        if not _widens(value(source), value(node)):
            return node
        node = source


def _widens(source: torch.Tensor, made: torch.Tensor) -> bool:
    floats = source.is_floating_point() and made.is_floating_point()
    return floats and made.itemsize >= source.itemsize and torch.promote_types(source.dtype, made.dtype) == made.dtype
