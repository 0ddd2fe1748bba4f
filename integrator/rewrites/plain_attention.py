"""Call attention without a mask where the mask says nothing, or says no more than "causal".

Precondition: the mask's value is known (it depends on shapes alone, or on an argument whose value is checked ahead of
each call). Proof: the value itself, compared element by element. A mask is what keeps torch from its fast kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from .attention_call import AttentionCall, attention_calls
from .graph_edit import drop_unused
from .known_values import known_values
from .mask_form import MaskForm, mask_form
from .rewrite import Applied, NotApplied, Notes, Rewrite, Setting


def _apply(gm: fx.GraphModule, setting: Setting, notes: Notes) -> None:
    without_masks(gm, known_values(gm), notes, PLAIN_ATTENTION.name)


def without_masks(gm: fx.GraphModule, values: Mapping[fx.Node, Any], notes: Notes, name: str) -> int:
    """Take the masks whose `values` have a form out of their calls; return how many."""
    forms: dict[fx.Node, MaskForm | None] = {}
    done = 0
    for call in attention_calls(gm):
        mask = call.mask
        if mask is None or mask not in values or not call.is_static or call.causal:
            continue
        if mask not in forms:
            forms[mask] = form_of(call, values[mask])
        form = forms[mask]
        if form is None:
            notes.left.append(NotApplied(name, call.node.name, "a mask of no known form"))
            continue
        if form.kind == "window":  # torch's call cannot say it: `window_attention` can
            continue
        call.write(mask=None, causal=form.kind == "causal")
        notes.applied.append(Applied(name, call.node.name, f"mask is {form.kind}: attention without it"))
        done += 1
    drop_unused(gm, forms)
    return done


def form_of(call: AttentionCall, value: Any) -> MaskForm | None:
    """Return the form of the mask of `call`, whose value is known."""
    queries, keys = call.lengths
    return mask_form(value, queries, keys) if isinstance(value, torch.Tensor) else None


PLAIN_ATTENTION = Rewrite("plain-attention", "attention without a mask that says nothing or only causal", _apply)
