"""Give attention its few key and value heads as they are, not repeated in memory for each query head.

Precondition: no mask (only kernels that take none know groups well), a GPU and a 16-bit dtype; the few heads are still
what they were when they were repeated. Proof: the chain of
views and copies between is run on numbers that name the elements, and gives each head as often as there are queries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...extractor.node_ops import NodeKind, example, node_kinds, ops_of
from ..writes import Writes, find_writes
from .attention_call import AttentionCall, attention_calls
from .graph_edit import drop_unused
from .rewrite import Applied, Notes, Rewrite, Setting

_COPIES = frozenset({torch.ops.aten.clone.default})
_HALVES = frozenset({torch.float16, torch.bfloat16})


def _apply(gm: fx.GraphModule, setting: Setting, notes: Notes) -> None:
    ungroup(gm, notes, on=("cuda",), dtypes=_HALVES)


def ungroup(gm: fx.GraphModule, notes: Notes, *, on: tuple[str, ...], dtypes: frozenset[torch.dtype]) -> None:
    """Do it for the calls on devices `on` with `dtypes`."""
    kinds, writes = node_kinds(gm), find_writes(gm)
    proofs: dict[Any, bool] = {}
    for call in attention_calls(gm):
        fake = example(call.query)
        if call.mask is not None or call.grouped or not call.is_static:
            continue
        if fake.dim() != 4 or fake.device.type not in on or fake.dtype not in dtypes:
            continue
        key, value = (_source(n, kinds) for n in (call.key, call.value))
        if key is None or value is None or example(key[-1]).shape[:3] != example(value[-1]).shape[:3]:
            continue
        if all(_is_current(chain, call, writes) and _repeats(chain, call, proofs) for chain in (key, value)):
            heads = example(key[-1]).shape[1]
            call.write(key=key[-1], value=value[-1], grouped=True)
            notes.applied.append(
                Applied(GROUPED_HEADS.name, call.node.name, f"{heads} key heads for {fake.shape[1]} queries' heads")
            )
            drop_unused(gm, [key[0], value[0]])


def _is_current(chain: tuple[fx.Node, ...], call: AttentionCall, writes: Writes) -> bool:
    """Whether attention may read the chain's source where the call stands, instead of the copy made of it earlier."""
    return not any(writes.between(chain[-2], call.node, memory) for memory in (chain[0], chain[-1]))


def _source(node: fx.Node, kinds: dict[fx.Node, NodeKind]) -> tuple[fx.Node, ...] | None:
    """Return the views and copies from `node` back to the first four-dimensional tensor of fewer elements."""
    chain = [node]
    whole = example(node).numel()
    while len(chain) < 8:
        last = chain[-1]
        made = example(last)
        if isinstance(made, torch.Tensor) and made.dim() == 4 and made.numel() < whole:
            return tuple(chain)
        if len(last.all_input_nodes) != 1 or not _moves_only(last, kinds):
            return None
        chain.append(last.all_input_nodes[0])
    return None


def _moves_only(node: fx.Node, kinds: dict[fx.Node, NodeKind]) -> bool:
    if kinds.get(node) is NodeKind.VIEW:
        return True
    if kinds.get(node) is not NodeKind.MEMORY:
        return False
    return all(one.op in _COPIES or one.op._schema.returns[0].alias_info is not None for one in ops_of(node) or ()) or (
        _is_reshape(node)
    )


def _is_reshape(node: fx.Node) -> bool:
    """Whether the node's ops are a copy under another shape."""
    names = [one.op.overloadpacket for one in ops_of(node) or ()]
    return names == [torch.ops.aten.clone, torch.ops.aten._unsafe_view]


def _repeats(chain: tuple[fx.Node, ...], call: AttentionCall, proofs: dict[Any, bool]) -> bool:
    """Whether the chain gives head h of its source to the query heads of group h, and changes nothing else."""
    source, heads = example(chain[-1]), example(call.query).shape[1]
    asked = (tuple(source.shape), heads, tuple((str(n.target), str(n.args[1:]), str(n.kwargs)) for n in chain[:-1]))
    if asked not in proofs:
        few = source.shape[1]
        value = torch.arange(source.numel()).view(source.shape)
        expected = value.repeat_interleave(heads // few, dim=1) if few and heads % few == 0 else None
        for node in reversed(chain[:-1]):
            value = _run(node, value)
        proofs[asked] = expected is not None and torch.equal(value, expected)
    return proofs[asked]


def _run(node: fx.Node, value: torch.Tensor) -> torch.Tensor:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda _: value)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)  # type: ignore[no-any-return]
    return node.target(*args, **kwargs)  # type: ignore[operator, no-any-return]


GROUPED_HEADS = Rewrite("grouped-heads", "attention reads each key head once, not once for each query head", _apply)
