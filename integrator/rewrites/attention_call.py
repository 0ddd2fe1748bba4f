"""Read and write a call of torch's scaled_dot_product_attention in a captured graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...extractor.node_ops import example

sdpa = torch.nn.functional.scaled_dot_product_attention

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of one call, whichever way they were written. query, key, value: (..., heads, length, width)."""

    node: fx.Node
    query: fx.Node
    key: fx.Node
    value: fx.Node
    mask: fx.Node | None
    dropout: Any
    causal: Any
    scale: Any
    grouped: Any

    @property
    def lengths(self) -> tuple[Any, Any]:
        """Queries and keys; a symbol where the graph holds for many lengths."""
        return example(self.query).shape[-2], example(self.key).shape[-2]

    @property
    def is_static(self) -> bool:
        tensors = [example(n) for n in (self.query, self.key, self.value)]
        return all(type(size) is int for t in tensors for size in (*t.shape, *t.stride()))

    def write(self, **changed: Any) -> None:
        """Write the call back with some arguments changed, by their names here."""
        now = {name: getattr(self, name) for name in ("query", "key", "value", "mask", "causal", "grouped")} | changed
        self.node.args = (now["query"], now["key"], now["value"])
        self.node.kwargs = {
            "attn_mask": now["mask"],
            "dropout_p": self.dropout,
            "is_causal": now["causal"],
            "scale": self.scale,
            "enable_gqa": now["grouped"],
        }


def attention_calls(gm: fx.GraphModule) -> Iterator[AttentionCall]:
    """Yield the calls of scaled_dot_product_attention whose query, key and value are tensors of the graph."""
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and node.target is sdpa:
            given = dict(zip(_NAMES, node.args, strict=False)) | dict(node.kwargs)
            query, key, value = (_tensor(given.get(name)) for name in _NAMES[:3])
            if query is not None and key is not None and value is not None:
                yield AttentionCall(
                    node,
                    query,
                    key,
                    value,
                    mask=given.get("attn_mask"),
                    dropout=given.get("dropout_p", 0.0),
                    causal=given.get("is_causal", False),
                    scale=given.get("scale"),
                    grouped=given.get("enable_gqa", False),
                )


def _tensor(given: Any) -> fx.Node | None:
    return given if isinstance(given, fx.Node) and isinstance(example(given), torch.Tensor) else None
