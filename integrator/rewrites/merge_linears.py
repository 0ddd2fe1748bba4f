"""Run linear layers of one input (query, key and value; gate and up) as one: the packed weight holds theirs.

Precondition: plain parameters with memory of their own, no gradient, an input that is not written into, results that
are not handed to the user. Proof: the same products, row by row; whoever reads a result still runs on the strided part
of the merged one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import fx

from ...extractor.node_ops import example
from ..writes import find_writes
from .graph_edit import drop_unused, insert_call, output_aliases
from .linear_call import LinearCall, linear_calls, positions
from .packed_use import fits, packed
from .rewrite import Applied, NotApplied, Notes, Rewrite, Setting


def _apply(gm: fx.GraphModule, setting: Setting, notes: Notes) -> None:
    given_away, written = output_aliases(gm), find_writes(gm).memory
    places = positions(gm)
    for group in _groups(gm):
        name = group[0].node.name
        if any(c.node in given_away for c in group):
            reason: str | None = "a result of one is handed to the user"
        elif any(n in written for c in group for n in (c.input, c.weight, c.bias)):
            reason = "what they read is written into"
        else:
            reason = _why_not(group) or _merge(gm, setting, group, places)
        if reason is not None:
            notes.left.append(NotApplied(MERGE_LINEARS.name, name, reason))
        else:
            notes.applied.append(Applied(MERGE_LINEARS.name, name, f"{len(group)} linear layers of one input as one"))


def _groups(gm: fx.GraphModule) -> Iterator[list[LinearCall]]:
    found: dict[tuple[object, ...], list[LinearCall]] = defaultdict(list)
    for call in linear_calls(gm):
        weight = example(call.weight)
        found[call.input, call.bias is None, weight.dtype, weight.device].append(call)
    yield from (group for group in found.values() if len(group) > 1)


def _why_not(group: list[LinearCall]) -> str | None:
    """Return what the readers of a result would not stand."""
    start = 0
    total = sum(c.rows for c in group)
    for call in group:
        fake = example(call.node)
        part = fake.new_empty((*fake.shape[:-1], total)).narrow(-1, start, call.rows)
        if not all(fits(user, call.node, part) for user in call.node.users):
            return f"what reads {call.node.name} needs it contiguous"
        start += call.rows
    return None


def _merge(gm: fx.GraphModule, setting: Setting, group: list[LinearCall], places: dict[fx.Node, int]) -> str | None:
    first = group[0].node
    weight = packed(gm, setting, first, [places[c.weight] for c in group])
    if isinstance(weight, str):
        return weight
    bias: fx.Node | str | None = None
    if group[0].bias is not None:
        bias = packed(gm, setting, first, [places[c.bias] for c in group if c.bias is not None])
        if isinstance(bias, str):
            return bias
    merged = insert_call(first, torch.nn.functional.linear, (group[0].input, weight, bias))
    start = 0
    for call in group:
        part = insert_call(first, torch.narrow, (merged, -1, start, call.rows))
        call.node.replace_all_uses_with(part)
        start += call.rows
    drop_unused(gm, [c.node for c in group])
    return None


MERGE_LINEARS = Rewrite("merge-linears", "linear layers of one input run as one", _apply)
