"""Call attention that a model writes out (product, mask, softmax, product) as the one call that fused kernels know.

Precondition: four-dimensional tensors of sizes that are numbers; the scores are scaled by a number and masked by
adding, nobody else reads them, and no dropout. A logit for no key (a sink) may stand beside the scores: then a GPU, a
16-bit dtype, no gradient, and a mask of known value that is all true, causal or a window. Proof: the written ops
themselves are run on random values of that shape, and the call must agree with them to within the dtype's rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ...extractor.node_ops import NodeKind, example, node_kinds
from ..writes import Writes, find_writes
from .attention_backend import Clock, agree, graph_us, layouts, like
from .attention_call import AttentionCall, sdpa
from .band_attention import band_attention, takes
from .graph_edit import drop_unused, insert_call
from .grouped_heads import few_heads
from .known_values import known_values
from .packed_use import fits
from .plain_attention import form_of
from .rewrite import Applied, NotApplied, Notes, Rewrite, Setting
from .window_attention import HALVES, flash_in_window
from .written_form import Written, read_written

# Written out, scores and weights are rounded in between: in 16 bits twice what one call does, in fp32 the sums' order.
_ROUNDINGS = {torch.float32: 64, torch.float64: 64}

_proven: dict[tuple[Any, ...], str | None] = {}
_times: dict[tuple[Any, ...], float] = {}


def attention_with_sinks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor,
    left: int,
    right: int,
    scale: float,
) -> torch.Tensor:
    """Attention whose softmax has one logit more, of no value, through the flash kernel.

    query: (rows, heads, length, width); key, value: (rows, heads or a divisor of them, length, width); sinks: the
    logits, broadcastable to (rows, heads, length, 1). left, right: how far a query sees, -1 for all. The kernel's
    log-sum-exp l over the keys makes it exact: e^l / (e^l + e^sink) = sigmoid(l - sink) of the result remains.
    """
    made, sums = flash_in_window(query, key, value, left, right, scale)
    return (made * torch.sigmoid(sums.unsqueeze(-1) - sinks.float())).to(query.dtype)


def band_with_sinks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor,
    left: int,
    right: int,
    scale: float,
) -> torch.Tensor:
    """The same through our kernel; raises RuntimeError where it does not take the call."""
    if not takes(query, key, value):
        raise RuntimeError("band_with_sinks takes equally many queries and keys of 16 bits on a GPU")
    length = query.shape[2]
    reach = [length if side < 0 else side for side in (left, right)]
    made: torch.Tensor = band_attention(query, key, value, sinks, *reach, scale)
    return made


@dataclass(frozen=True)
class Where:
    """Where sinks are called: devices and dtypes, the functions that do, and a clock (us a call)."""

    devices: tuple[str, ...] = ("cuda",)
    dtypes: frozenset[torch.dtype] = HALVES
    ways: tuple[Callable[..., torch.Tensor], ...] = (attention_with_sinks, band_with_sinks)
    clock: Clock = graph_us


def _apply(gm: fx.GraphModule, setting: Setting, notes: Notes) -> None:
    as_calls(gm, setting, notes)


def as_calls(gm: fx.GraphModule, setting: Setting, notes: Notes, where: Where | None = None) -> None:
    """Make calls of the attention that `gm` writes out. where: the sinks' part; a GPU's kernel if left out."""
    kinds = node_kinds(gm)
    found = [w for node in list(gm.graph.nodes) if (w := read_written(node, kinds)) is not None]
    if not found:
        return
    graph = _Graph(kinds, find_writes(gm), known_values(gm), {})
    for written in found:
        call = _call_of(written)
        said = _why_not(written, call, setting) or _write(gm, written, call, graph, where or Where())
        if said is not None:
            notes.left.append(NotApplied(WRITTEN_ATTENTION.name, written.node.name, said))
            continue
        what = "written out, with a sink" if written.sinks is not None else "written out"
        notes.applied.append(Applied(WRITTEN_ATTENTION.name, written.node.name, f"attention {what}: one call"))
        drop_unused(gm, [written.node])


@dataclass(frozen=True)
class _Graph:
    """What is known of a graph as it was captured. proofs: of repeated heads."""

    kinds: dict[fx.Node, NodeKind]
    writes: Writes
    values: Mapping[fx.Node, Any]
    proofs: dict[Any, bool]


def _call_of(written: Written) -> AttentionCall:
    assert written.query is not None
    assert written.key is not None
    return AttentionCall(
        written.node, written.query, written.key, written.value, written.mask, 0.0, False, written.scale, False
    )


def _why_not(written: Written, call: AttentionCall, setting: Setting) -> str | None:
    fakes = [example(n) for n in (call.query, call.key, call.value)]
    if not call.is_static or any(t.dim() != 4 or t.shape[:2] != fakes[0].shape[:2] for t in fakes):
        return "tensors of other than four dimensions, or sizes that vary"
    if len({t.dtype for t in fakes}) > 1 or not fakes[0].dtype.is_floating_point:
        return "queries, keys and values of several dtypes"
    inner = {*written.inner, written.node}
    if any(user not in inner for node in written.inner if node is not written.transposed for user in node.users):
        return "somebody else reads its scores"
    mask = example(call.mask) if call.mask is not None else None
    if mask is not None and (not isinstance(mask, torch.Tensor) or mask.dtype != fakes[0].dtype):
        return "what is added to its scores is of another dtype"
    return "a sink, and the graph is differentiated" if written.sinks is not None and setting.gradients else None


def _write(gm: fx.GraphModule, written: Written, call: AttentionCall, graph: _Graph, where: Where) -> str | None:
    """Put a call in place of what is written, or return why not."""
    read = (call.query, call.key, call.mask, written.sinks)
    first = next(n for n in written.node.graph.nodes if n in written.inner)
    if any(graph.writes.between(first, written.node, n) for n in read if n is not None):
        return "what it reads is written into meanwhile"
    find = _without_sinks if written.sinks is None else _with_sinks
    new, said = find(written, call, graph, where)
    if new is None:
        return said
    args = new.args
    if written.sinks is not None:
        key, value = few_heads(call, graph.kinds, graph.writes, graph.proofs) or (call.key, call.value)
        args = (call.query, key, value, *args[3:])
    made = insert_call(written.node, new.target, args, dict(new.kwargs))
    if not all(fits(user, written.node, example(made)) for user in written.node.users):
        drop_unused(gm, [made])
        return "what reads its result needs other strides"
    written.node.replace_all_uses_with(made)
    return None


def _without_sinks(
    written: Written, call: AttentionCall, graph: _Graph, where: Where
) -> tuple[_New | None, str | None]:
    """Return torch's own call, or why it is not the same."""
    new = _New(sdpa, (call.query, call.key, call.value), {"attn_mask": call.mask, "scale": call.scale})
    said = _differs(written, call, new, graph)
    return (new, None) if said is None else (None, said)


def _with_sinks(written: Written, call: AttentionCall, graph: _Graph, where: Where) -> tuple[_New | None, str | None]:
    """Return the fastest call with sinks that is right, or why there is none."""
    reach = _reach(call, graph, where)
    if isinstance(reach, str):
        return None, reach
    times: dict[_New, float] = {}
    said = None
    for way in where.ways:
        new = _New(way, (call.query, call.key, call.value, written.sinks, *reach, call.scale), {})
        said = _differs(written, call, new, graph)
        if said is None:
            times[new] = _timed(new, where.clock)
    best = min(times, key=lambda new: times[new], default=None)
    return best, None if best is not None else said


def _timed(new: _New, clock: Clock) -> float:
    asked = (new.target, layouts(*new.args[:4]), new.args[4:], clock)
    if asked not in _times:
        with unset_fake_temporarily(), torch.no_grad():
            values = [like(n) for n in new.args[:4]]
            _times[asked] = clock(lambda: new.target(*values, *new.args[4:]))
    return _times[asked]


@dataclass(frozen=True, eq=False)
class _New:
    """The call that is to stand for what is written."""

    target: Callable[..., torch.Tensor]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def values(self, value_of: Callable[[fx.Node], Any]) -> torch.Tensor:
        args, kwargs = fx.node.map_arg((self.args, dict(self.kwargs)), value_of)
        return self.target(*args, **kwargs)


def _reach(call: AttentionCall, graph: _Graph, where: Where) -> tuple[int, int] | str:
    """Return how far a query sees to the left and right, -1 for all; or why that is not known."""
    fake = example(call.query)
    if fake.device.type not in where.devices or fake.dtype not in where.dtypes:
        return "a sink, for which there is a kernel on a GPU in 16 bits alone"
    if call.mask is None:
        return -1, -1
    form = form_of(call, graph.values[call.mask]) if call.mask in graph.values else None
    if form is None:
        return "a sink, and a mask of no known form"
    return {"all": (-1, -1), "causal": (-1, 0), "window": (form.left, form.right)}[form.kind]


def _differs(written: Written, call: AttentionCall, new: _New, graph: _Graph) -> str | None:
    """Return how the call differs from what is written on random values; None where it does not. Asked once a form."""
    within = {*written.inner, written.node}
    inner = [n for n in written.node.graph.nodes if n in within]
    mask = call.mask
    known = {mask: graph.values[mask]} if mask is not None and mask in graph.values else {}
    asked = (
        tuple((n.target, _constants((n.args, n.kwargs))) for n in inner),
        layouts(call.query, call.key, call.value, call.mask, written.sinks),
        (new.target, _constants((new.args, dict(new.kwargs))), form_of(call, *known.values()) if known else None),
    )
    if asked not in _proven:
        with unset_fake_temporarily(), torch.no_grad():
            _proven[asked] = _compare(inner, new, known)
    return _proven[asked]


def _compare(inner: list[fx.Node], new: _New, known: Mapping[fx.Node, torch.Tensor]) -> str | None:
    values: dict[fx.Node, Any] = {}

    def value_of(node: fx.Node) -> Any:
        if node not in values:
            values[node] = known[node] if node in known else _run(node, value_of) if node in inner else like(node)
        return values[node]

    try:
        expected = value_of(inner[-1])
        made = new.values(value_of)
    except RuntimeError as error:  # torch's way to say that a kernel does not take a call, or that memory is short
        return f"cannot be compared: {str(error).splitlines()[0][:80]}"
    return None if agree(made, expected, _ROUNDINGS.get(expected.dtype, 16)) else "its call gives something else"


def _run(node: fx.Node, value_of: Callable[[fx.Node], Any]) -> Any:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), value_of)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _constants(arguments: Any) -> str:
    """Return what is no node among a call's arguments."""
    return str(fx.node.map_arg(arguments, lambda _: "node"))


WRITTEN_ATTENTION = Rewrite("written-attention", "attention that a model writes out is one call", _apply)
