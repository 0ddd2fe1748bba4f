"""See whether a reference is one call of scaled dot product attention without dropout, and with which arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def attention_call(reference: Callable[..., Any]) -> dict[str, Any] | None:
    """Return the arguments of the one attention a reference is, None where it does anything else or more.

    They are by name, as they were given: tensors are nodes named like the task's inputs, what was left out is absent.
    """
    try:
        graph = fx.symbolic_trace(reference).graph
    except (TypeError, RuntimeError):  # control flow or shapes read as numbers: more than one call
        return None
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    if len(calls) != 1 or calls[0].target is not torch.nn.functional.scaled_dot_product_attention:
        return None
    given = {**dict(zip(_NAMES, calls[0].args, strict=False)), **calls[0].kwargs}
    tensors = [given.get(name) for name in _NAMES[:3]]
    mask = given.get("attn_mask")
    if given.get("dropout_p") or not all(isinstance(t, fx.Node) for t in tensors):
        return None
    return given if mask is None or isinstance(mask, fx.Node) else None
