"""Read attention that a model writes out: a product, its scale and mask, a softmax, and a product with the values."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from ...extractor.node_ops import NodeKind, example, is_call, ops_of

_PRODUCTS = frozenset({torch.matmul, operator.matmul, torch.bmm})
_SUMS = frozenset({operator.add, torch.add})
_DIFFERENCES = frozenset({operator.sub, torch.sub})
_FACTORS = frozenset({operator.mul, torch.mul})
_QUOTIENTS = frozenset({operator.truediv, torch.div})
_SOFTMAXES = frozenset({torch.nn.functional.softmax, torch.softmax, "softmax"})
_CONCATENATIONS = frozenset({torch.cat, torch.concat, torch.concatenate})
_CASTS = frozenset({torch.ops.aten._to_copy})


@dataclass
class Written:
    """Attention as it was written. node: gives its result; inner: the nodes between that and its inputs.

    sinks: logits (..., length, 1) of one key more, whose value is nothing. mask: what is added to the scores.
    """

    node: fx.Node
    value: fx.Node
    query: fx.Node | None = None
    key: fx.Node | None = None
    transposed: fx.Node | None = None
    mask: fx.Node | None = None
    sinks: fx.Node | None = None
    scale: float = 1.0
    inner: list[fx.Node] = field(default_factory=list)


def read_written(node: fx.Node, kinds: Mapping[fx.Node, NodeKind]) -> Written | None:
    """Return the attention whose result `node` is, None where it is none."""
    if node.target not in _PRODUCTS or not all(isinstance(n, fx.Node) for n in node.args[:2]):
        return None
    weights, value = node.args[:2]
    assert isinstance(weights, fx.Node)
    assert isinstance(value, fx.Node)
    found = Written(node, value)
    at = _through(weights, found, kinds)
    cut = at.target is operator.getitem and at.args[1] == (..., slice(None, -1, None))
    if cut:
        at = _into(at, found, kinds)
    if at.target not in _SOFTMAXES or not _last_dim(at):
        return None
    at = _into(at, found, kinds)
    if at.target in _DIFFERENCES and _is_greatest(at):
        found.inner += at.all_input_nodes[1:] + at.all_input_nodes[1].all_input_nodes
        at = _into(at, found, kinds)
    if cut:
        parts = at.args[0] if at.args else None
        if at.target not in _CONCATENATIONS or not _last_dim(at) or not isinstance(parts, list | tuple):
            return None
        scores, *sinks = (p for p in parts if isinstance(p, fx.Node))
        if len(parts) != 2 or len(sinks) != 1 or example(sinks[0]).shape[-1] != 1:
            return None
        found.inner.append(at)
        found.sinks = sinks[0]
        at = _through(scores, found, kinds)
    return found if _read_scores(at, found, kinds) else None


def _read_scores(at: fx.Node, found: Written, kinds: Mapping[fx.Node, NodeKind]) -> bool:
    """Read the masked and scaled product that `at` gives into `found`; whether it is one."""
    if at.target in _SUMS and len(at.all_input_nodes) == 2 and not at.kwargs:
        found.inner.append(at)
        scores, found.mask = at.all_input_nodes
        at = _through(scores, found, kinds)
    if at.target in _FACTORS | _QUOTIENTS and len(at.args) == 2 and not at.kwargs:
        factor = at.args[1]
        if not isinstance(factor, int | float) or not factor:
            return False
        found.scale = 1.0 / factor if at.target in _QUOTIENTS else float(factor)
        at = _into(at, found, kinds)
    if at.target not in _PRODUCTS or len(at.all_input_nodes) != 2:
        return False
    found.inner.append(at)
    found.query, found.transposed = at.all_input_nodes
    turned = found.transposed
    dims = turned.args[1:] if turned.target in ("transpose", torch.transpose) else ()
    if {d % 4 for d in dims if isinstance(d, int)} == {2, 3}:
        found.key = turned.all_input_nodes[0]
        found.inner.append(turned)
    return found.key is not None


def _into(node: fx.Node, found: Written, kinds: Mapping[fx.Node, NodeKind]) -> fx.Node:
    """Return what `node` is made of, behind casts and ops that do nothing."""
    found.inner.append(node)
    return _through(node.all_input_nodes[0], found, kinds)


def _through(node: fx.Node, found: Written, kinds: Mapping[fx.Node, NodeKind]) -> fx.Node:
    while len(node.all_input_nodes) == 1 and is_call(node) and _passes(node, kinds):
        found.inner.append(node)
        node = node.all_input_nodes[0]
    return node


def _passes(node: fx.Node, kinds: Mapping[fx.Node, NodeKind]) -> bool:
    """Whether `node` gives its one input, at most in another dtype."""
    made, given = example(node), example(node.all_input_nodes[0])
    if not isinstance(made, torch.Tensor) or not isinstance(given, torch.Tensor) or made.shape != given.shape:
        return False
    if kinds.get(node) is NodeKind.IDENTITY:
        return True  # it runs nothing: a dropout that is switched off, whatever strides its example has
    if made.stride() != given.stride():
        return False
    if kinds.get(node) is NodeKind.VIEW:
        return True
    seen = ops_of(node) or ()
    return bool(seen) and all(one.op.overloadpacket in _CASTS for one in seen)


def _last_dim(node: fx.Node) -> bool:
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    made = example(node)
    return isinstance(dim, int) and isinstance(made, torch.Tensor) and dim % made.dim() == made.dim() - 1


def _is_greatest(node: fx.Node) -> bool:
    """Whether `node` takes from its first input the greatest of each row, which changes no softmax."""
    if len(node.all_input_nodes) != 2:
        return False
    scores, greatest = node.all_input_nodes
    if greatest.target is not operator.getitem or greatest.args[1] != 0:
        return False
    (most,) = greatest.all_input_nodes
    asked = most.target in ("max", torch.max) and most.all_input_nodes == [scores]
    return bool(asked and most.kwargs.get("dim") == -1 and most.kwargs.get("keepdim") is True)
