"""Call attention with a sliding window where the mask says one: keys outside of it are then not even read.

Precondition: a GPU, a 16-bit dtype, sizes that are numbers, no dropout, a mask of known value that is a window of
equally many queries and keys. Proof: the mask's value, compared element by element; the call on random values of that
shape must agree with torch's own call, mask and all, to within the dtype's rounding; and it is faster than every back
end with the mask, timed in a CUDA graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ...extractor.node_ops import example, node_kinds
from ..writes import find_writes
from .attention_backend import MARGIN, Clock, agree, graph_us, layouts, like, timed_back_ends
from .attention_call import AttentionCall, attention_calls, sdpa
from .band_attention import attention_by_band
from .graph_edit import drop_unused, insert_call
from .grouped_heads import few_heads
from .known_values import known_values
from .mask_form import MaskForm
from .packed_use import fits
from .plain_attention import form_of
from .rewrite import Applied, NotApplied, Notes, Rewrite, Setting

HALVES = frozenset({torch.float16, torch.bfloat16})

# Called with query, key, value, left, right and scale.
Way = Callable[..., torch.Tensor]

_decided: dict[tuple[Any, ...], tuple[Way | None, str]] = {}


def attention_by_window(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, left: int, right: int, scale: float | None
) -> torch.Tensor:
    """scaled_dot_product_attention in which query i sees keys i - left to i + right, through the flash kernel.

    query: (rows, heads, length, width); key, value: (rows, heads or a divisor of them, length, width). Raises
    RuntimeError, as torch's own back ends do, where the kernel does not take the call.
    """
    return flash_in_window(query, key, value, left, right, scale)[0]


def flash_in_window(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, left: int, right: int, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention in a window (-1: without an end) and the log-sum-exp of its scores, (rows, heads, length)."""
    rows_first = [t.transpose(1, 2) for t in (query, key, value)]
    length = query.shape[2]
    made: tuple[torch.Tensor, ...] = torch.ops.aten._flash_attention_forward(
        *rows_first, None, None, length, length, 0.0, False, False,
        scale=scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return made[0].transpose(1, 2), made[1]


@dataclass(frozen=True)
class Where:
    """Where windows are used: devices and dtypes, the functions that call one, and a clock (us a call)."""

    devices: tuple[str, ...] = ("cuda",)
    dtypes: frozenset[torch.dtype] = HALVES
    ways: tuple[Way, ...] = (attention_by_window, attention_by_band)
    clock: Clock = graph_us


def _apply(gm: fx.GraphModule, setting: Setting, notes: Notes) -> None:
    with_windows(gm, known_values(gm), notes, WINDOW_ATTENTION.name)


def with_windows(
    gm: fx.GraphModule, values: Mapping[fx.Node, Any], notes: Notes, name: str, where: Where | None = None
) -> int:
    """Call attention with a window where the mask's value in `values` is one and that is faster; return how often."""
    where = where or Where()
    kinds, writes = node_kinds(gm), find_writes(gm)
    forms: dict[fx.Node, MaskForm | None] = {}
    proofs: dict[Any, bool] = {}
    done = 0
    for call in attention_calls(gm):
        if call.mask is None or call.mask not in values or not _may_have_one(call, where):
            continue
        if call.mask not in forms:
            forms[call.mask] = form_of(call, values[call.mask])
        form = forms[call.mask]
        if form is None or form.kind != "window":
            continue
        key, value = few_heads(call, kinds, writes, proofs) or (call.key, call.value)
        way, said = _decide(call, form, (key, value), values[call.mask], where)
        if way is None or not _write(gm, call, form, (key, value), way):
            notes.left.append(NotApplied(name, call.node.name, said))
            continue
        notes.applied.append(Applied(name, call.node.name, f"a window of {form.left + 1 + form.right} keys: {said}"))
        done += 1
    drop_unused(gm, forms)
    return done


def _may_have_one(call: AttentionCall, where: Where) -> bool:
    fake = example(call.query)
    if not call.is_static or call.dropout != 0.0 or call.causal is not False:
        return False
    return fake.dim() == 4 and fake.device.type in where.devices and fake.dtype in where.dtypes


def _decide(
    call: AttentionCall, form: MaskForm, few: tuple[fx.Node, fx.Node], mask: torch.Tensor, where: Where
) -> tuple[Way | None, str]:
    """Return the way that is right and fastest here, None where the mask is, and the figures.

    Asked once for calls that are alike.
    """
    asked = (layouts(call.query, call.key, call.value, *few), form, call.scale, call.grouped, where)
    if asked not in _decided:
        with unset_fake_temporarily(), torch.no_grad():
            _decided[asked] = _race(call, form, few, mask, where)
    return _decided[asked]


def _race(
    call: AttentionCall, form: MaskForm, few: tuple[fx.Node, fx.Node], mask: torch.Tensor, where: Where
) -> tuple[Way | None, str]:
    query, key, value = like(call.query), *(like(n) for n in few)
    heads = query.shape[1]
    whole = [query, *(t.repeat_interleave(heads // t.shape[1], dim=1) for t in (key, value))]
    kwargs: dict[str, Any] = {"attn_mask": mask, "is_causal": False, "scale": call.scale, "enable_gqa": False}
    usual: Way = sdpa
    expected = usual(*whole, **kwargs)
    times: dict[Way, float] = {}
    figures = []
    for way in where.ways:
        run = functools.partial(way, query, key, value, form.left, form.right, call.scale)
        name = way.__name__.rpartition("_")[2]
        try:
            made = run()
        except RuntimeError as error:  # torch's way to say that a kernel does not take such a call
            figures.append(f"{name} does not take it ({str(error).splitlines()[0][:60]})")
            continue
        if not agree(made, expected):
            figures.append(f"{name} differs")
            continue
        times[way] = where.clock(run)
        figures.append(f"{name} {times[way]:.1f} us")
    usual_us = where.clock(functools.partial(usual, *whole, **kwargs))
    masked, said = timed_back_ends(whole, kwargs, expected, where.clock)
    figures += [f"with the mask: torch's choice {usual_us:.1f} us", *said]
    best = min(times, key=lambda way: times[way], default=None)
    is_faster = best is not None and times[best] <= MARGIN * min([usual_us, *masked.values()])
    return best if is_faster else None, ", ".join(figures)


def _write(gm: fx.GraphModule, call: AttentionCall, form: MaskForm, few: tuple[fx.Node, fx.Node], way: Way) -> bool:
    """Put the call with a window in place of `call`; whether what reads the result stood its strides."""
    made = insert_call(call.node, way, (call.query, *few, form.left, form.right, call.scale))
    fit = all(fits(user, call.node, example(made)) for user in call.node.users)
    if fit:
        call.node.replace_all_uses_with(made)
    drop_unused(gm, [call.node if fit else made])
    return fit


WINDOW_ATTENTION = Rewrite("window-attention", "attention behind a sliding window reads no keys outside it", _apply)
