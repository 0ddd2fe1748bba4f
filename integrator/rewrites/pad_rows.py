"""Pad the rows of a wide linear layer (a vocabulary of 50257) to where matrix kernels are fast; its result is a view.

Precondition: a GPU, a 16-bit dtype, more than 256 rows, not a multiple of 8; a plain parameter, no gradient. Proof: the
padded rows are not in the view. Where the graph hands the result to the user it is a view of rows 64-aligned: the same
shape, dtype and values, its leading dims still flatten, but it is not contiguous.
"""

from __future__ import annotations

import torch
from torch import fx

from ...extractor.node_ops import example
from .graph_edit import drop_unused, insert_call
from .linear_call import LinearCall, linear_calls, positions
from .packed_use import fits, packed
from .rewrite import Applied, NotApplied, Notes, Rewrite, Setting

_HALVES = frozenset({torch.float16, torch.bfloat16})

# GPT-2's head, 8192 x 768 on one H200: 6716 us at 50257 rows, 1016 at 50264, 1012 at 50304.
_FAST, _PADDED = 8, 64
_LEAST_ROWS = 256


def _apply(gm: fx.GraphModule, setting: Setting, notes: Notes) -> None:
    pad(gm, setting, notes, on=("cuda",), dtypes=_HALVES, least=_LEAST_ROWS)


def pad(
    gm: fx.GraphModule,
    setting: Setting,
    notes: Notes,
    *,
    on: tuple[str, ...],
    dtypes: frozenset[torch.dtype],
    least: int,
) -> None:
    """Pad the layers on devices `on` with `dtypes` that have more than `least` rows."""
    places = positions(gm)
    for call in linear_calls(gm):
        fake = example(call.weight)
        if fake.device.type not in on or fake.dtype not in dtypes or call.rows <= least or call.rows % _FAST == 0:
            continue
        reason = _pad_one(gm, setting, call, places)
        if reason is not None:
            notes.left.append(NotApplied(PAD_ROWS.name, call.node.name, reason))
        else:
            notes.applied.append(Applied(PAD_ROWS.name, call.node.name, f"{call.rows} rows, padded to {_rows(call)}"))


def _rows(call: LinearCall) -> int:
    return -(-call.rows // _PADDED) * _PADDED


def _pad_one(gm: fx.GraphModule, setting: Setting, call: LinearCall, places: dict[fx.Node, int]) -> str | None:
    fake, rows = example(call.node), _rows(call)
    part = fake.new_empty((*fake.shape[:-1], rows)).narrow(-1, 0, call.rows)
    if not all(fits(user, call.node, part) for user in call.node.users):
        return f"what reads {call.node.name} needs it contiguous"
    weight = packed(gm, setting, call.node, [places[call.weight]], rows)
    if isinstance(weight, str):
        return weight
    bias: fx.Node | str | None = None
    if call.bias is not None:
        bias = packed(gm, setting, call.node, [places[call.bias]], rows)
        if isinstance(bias, str):
            return bias
    wide = insert_call(call.node, torch.nn.functional.linear, (call.input, weight, bias))
    call.node.replace_all_uses_with(insert_call(call.node, torch.narrow, (wide, -1, 0, call.rows)))
    drop_unused(gm, [call.node])
    return None


PAD_ROWS = Rewrite("pad-rows", "a wide linear layer of unaligned rows is padded", _apply)
