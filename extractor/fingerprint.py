"""Hash what a region computes, so that equal layers are one task and a kernel finds its places again.

Ops, true constants (eps, scale), dtypes, ranks and roles count; names and sizes do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .node_ops import example, is_weight
from .sizes import SizeOf, symbolize


def fingerprint(nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> str | None:
    """Return the region's fingerprint (16 hex digits), None where it holds a value that cannot be named."""
    local = {n: f"i{k}" for k, n in enumerate(inputs)} | {n: f"n{k}" for k, n in enumerate(nodes)}
    lines = [f"{local[n]}:{_describe(n)}" for n in inputs]
    for node in nodes:
        args, kwargs = symbolize(node, inputs)
        try:
            lines.append(f"{local[node]}={_target(node)}({_spell(args, local)},{_spell(kwargs, local)})")
        except _UnnamedError:
            return None
    lines.append("->" + ",".join(local[n] for n in outputs))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


class _UnnamedError(Exception):
    """A value without a stable spelling stands in the region."""


def _describe(node: fx.Node) -> str:
    value = example(node)
    return f"{value.dtype}/{value.dim()}/{value.device.type}/{'w' if is_weight(node) else 'a'}"


def _target(node: fx.Node) -> str:
    if node.op == "call_method":
        return f".{node.target}"
    return f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__name__', node.target)}"


def _spell(value: Any, local: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        if value not in local:
            raise _UnnamedError
        return local[value]
    if isinstance(value, SizeOf):
        return f"size({value.source},{value.dim})"
    if isinstance(value, slice):
        return f"slice({_spell(value.start, local)},{_spell(value.stop, local)},{_spell(value.step, local)})"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_spell(v, local) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_spell(v, local)}" for k, v in sorted(value.items())) + "}"
    if value is None or isinstance(value, bool | int | float | str | complex):
        return f"{type(value).__name__}:{value!r}"
    if value is Ellipsis or isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return str(value)
    raise _UnnamedError
