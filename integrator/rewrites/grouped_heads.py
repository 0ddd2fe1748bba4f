"""Give attention its few key and value heads as they are, not repeated in memory for each query head.

Precondition: no mask (only kernels that take none know groups well), or a single query and a mask that all heads share:
then the heads of a group are queries of one key head. A GPU and a 16-bit dtype; the few heads are still what they were
when they were repeated. Proof: the chain of
views and copies between is run on numbers that name the elements, and gives each head as often as there are queries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ...extractor.node_ops import NodeKind, example, node_kinds, ops_of
from ..writes import Writes, find_writes
from .attention_call import AttentionCall, attention_calls, sdpa
from .graph_edit import drop_unused, insert_call
from .packed_use import fits
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
        if call.grouped or not call.is_static or not (call.mask is None or _is_one_query(call)):
            continue
        if fake.dim() != 4 or fake.device.type not in on or fake.dtype not in dtypes:
            continue
        few = few_heads(call, kinds, writes, proofs)
        if few is None:
            continue
        if call.mask is None:
            call.write(key=few[0], value=few[1], grouped=True)
        elif not _heads_as_queries(gm, call, *few):
            continue
        heads = example(few[0]).shape[1]
        notes.applied.append(
            Applied(GROUPED_HEADS.name, call.node.name, f"{heads} key heads for {fake.shape[1]} queries' heads")
        )
        drop_unused(gm, [call.key, call.value])


def few_heads(
    call: AttentionCall, kinds: dict[fx.Node, NodeKind], writes: Writes, proofs: dict[Any, bool]
) -> tuple[fx.Node, fx.Node] | None:
    """Return the keys and values of four dimensions whose heads are repeated for `call`; None where none are.

    kinds, writes: of the graph. proofs: what was found for other calls of it.
    """
    key, value = (_source(n, kinds) for n in (call.key, call.value))
    if key is None or value is None or example(key[-1]).shape[:3] != example(value[-1]).shape[:3]:
        return None
    if all(_is_current(chain, call, writes) and _repeats(chain, call, proofs) for chain in (key, value)):
        return key[-1], value[-1]
    return None


def _is_one_query(call: AttentionCall) -> bool:
    mask = example(call.mask) if isinstance(call.mask, fx.Node) else None
    shared = isinstance(mask, torch.Tensor) and mask.dim() == 4 and mask.shape[1] == 1
    return shared and call.lengths[0] == 1 and call.causal is False


def _heads_as_queries(gm: fx.GraphModule, call: AttentionCall, key: fx.Node, value: fx.Node) -> bool:
    """Let the heads of a group be queries of their one key head; whether what reads the result stood its strides."""
    rows, heads, _, width = example(call.query).shape
    few = example(key).shape[1]
    query = insert_call(call.node, "reshape", (call.query, rows, few, heads // few, width))
    said = {"attn_mask": call.mask, "dropout_p": call.dropout, "is_causal": False, "scale": call.scale}
    made = insert_call(call.node, sdpa, (query, key, value), said | {"enable_gqa": False})
    whole = insert_call(call.node, "reshape", (made, rows, heads, 1, example(value).shape[-1]))
    fit = all(fits(user, call.node, example(whole)) for user in call.node.users)
    if fit:
        call.node.replace_all_uses_with(whole)
    drop_unused(gm, [call.node if fit else whole])
    return fit


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
