"""See what a reference is by the ATen ops it runs, so that a template is offered only where it computes the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Linear:
    """x [..., K] times weight [N, K] transposed, plus bias [N]. Positions of inputs; bias: None without one."""

    x: int
    weight: int
    bias: int | None


def linear(node: Any) -> Linear | None:
    """Return the linear a node is, through views that keep rows whole; None where it is anything else."""
    node = without_views(node)
    if not isinstance(node, fx.Node) or node.target not in (aten.mm.default, aten.addmm.default):
        return None
    given: Any = node.args
    bias, x, turned = given if node.target is aten.addmm.default else (None, *given)
    if node.kwargs or not isinstance(turned, fx.Node) or turned.target is not aten.t.default:
        return None
    places = [input_position(without_views(x)), input_position(turned.args[0]), input_position(bias)]
    if places[0] is None or places[1] is None or (bias is not None and (places[2] is None or value(bias).dim() != 1)):
        return None
    return Linear(places[0], places[1], places[2])


def linears(reference: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[Linear] | None:
    """Return the linears a reference returns, in order; None where it computes anything else or more."""
    graph = traced(reference, inputs)
    if graph is None:
        return None
    found = [linear(node) for node in results(graph)]
    return [f for f in found if f is not None] if all(found) else None


@dataclass(frozen=True)
class Loss:
    """Cross entropy of unweighted classes over the last dimension of logits. target: position of an input.

    logits: the node, before it is widened or flattened. dtype: of the result. rows: how many the first call has.
    """

    logits: fx.Node
    target: int
    reduction: str
    ignore: int
    dtype: str
    rows: int


def loss(reference: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Loss | None:
    """Return the cross entropy a reference returns; None where it computes anything else or more behind it."""
    graph = traced(reference, inputs)
    (node, *others) = results(graph) if graph is not None else (None,)
    first = isinstance(node, fx.Node) and getattr(node.target, "__name__", "") == "getitem" and node.args[1] == 0
    nll: Any = node.args[0] if first else node  # type: ignore[union-attr]
    if others or not isinstance(nll, fx.Node) or nll.target is not aten.nll_loss_forward.default:
        return None
    given: Any = nll.args
    log_probability, target, weight, reduction, ignore = given
    softmax = without_views(log_probability)
    if weight is not None or not isinstance(softmax, fx.Node) or softmax.target is not aten._log_softmax.default:
        return None
    x, dim = softmax.args[:2]
    shape = value(log_probability).shape
    # A loss by row comes back in the shape of the flat rows; another shape would need a view behind it.
    if dim not in (-1, value(softmax).dim() - 1) or len(shape) != 2 or value(x).shape[-1] != shape[-1]:
        return None
    labels, logits = input_position(_flat(target)), without_widening(x)
    if labels is None or not isinstance(logits, fx.Node):
        return None
    dtype = str(value(node).dtype).removeprefix("torch.")
    return Loss(logits, labels, ("none", "mean", "sum")[int(reduction)], int(ignore), dtype, shape[0])


def _flat(target: Any) -> Any:
    while isinstance(target, fx.Node) and target.target in (aten.view.default, aten._unsafe_view.default):
        target = target.args[0]
    return target
