"""Offer attention on a CPU with AMX: scores, softmax and the second product of 16 query rows in one pass, in bf16.

torch's flash attention for the CPU spends most of a short sequence outside the matrix units. This one packs keys and
values once a head and keeps a tile of rows in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from torch import fx

from ...extractor.load_task import LoadedTask
from ...extractor.task import Task
from ...models.machine import cpu_flags
from ..attempt import Attempt
from ..candidate import Candidate

_MASKS = {None: 0, "bool": 1, "bfloat16": 2, "float32": 3}
_CAUSAL = 4

_WRAPPER = """

LIBRARY = compile_cpp(SOURCE)
LIBRARY.attention.restype = None
if LIBRARY.attention_ready() != 0:
    raise RuntimeError("the kernel does not grant this process the AMX tile registers")

_plans = {{}}


def _numbers(*values):
    return (ctypes.c_int64 * len(values))(*values)


def _plan(q, k, v, mask):
    batch, heads, queries, depth = q.shape
    same = k.shape[:2] == v.shape[:2] == q.shape[:2]
    k, v = (t.expand(batch, heads, *t.shape[2:]) for t in (k, v))
    if v.shape[2] != k.shape[2] or k.shape[3] != depth:
        raise ValueError(f"attention: query {{q.shape}}, key {{k.shape}} and value {{v.shape}} do not fit together")
    sizes = _numbers(batch, heads, queries, k.shape[2], depth, v.shape[3])
    steps = (0, 0, 0, 0)
    if mask is not None:
        steps = mask.expand(batch, heads, queries, k.shape[2]).stride()
    scale = ctypes.c_float({scale})
    strides = [_numbers(*t.stride()) for t in (q, k, v)]
    # torch's fused attention leaves heads inside rows, as the next linear wants them; where it does not apply, outside.
    fused = same and v.shape[3] == depth and all(t.stride(3) == 1 and t.numel() for t in (q, k, v))
    order = (0, 2, 1, 3) if fused else (0, 1, 2, 3)
    shape = (batch, heads, queries, v.shape[3])
    made = torch.empty([shape[d] for d in order], dtype=q.dtype).permute(order)
    return shape, order, sizes, strides, _numbers(*steps), _numbers(*made.stride()), scale


def kernel({arguments}):
    q, k, v, mask = {q}, {k}, {v}, {mask}
    key = tuple((t.shape, t.stride()) for t in (q, k, v, mask) if t is not None)
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _plan(q, k, v, mask)
    shape, order, sizes, strides, steps, out_steps, scale = plan
    out = torch.empty([shape[d] for d in order], dtype=q.dtype).permute(order)
    LIBRARY.attention(
        ctypes.c_void_p(q.data_ptr()), ctypes.c_void_p(k.data_ptr()), ctypes.c_void_p(v.data_ptr()),
        ctypes.c_void_p(mask.data_ptr() if mask is not None else 0), ctypes.c_void_p(out.data_ptr()),
        sizes, *strides, steps, out_steps, ctypes.c_int64({kind}), scale,
    )
    return out
"""


@dataclass(frozen=True)
class _Attention:
    """The one call a reference makes. Names are inputs of the task."""

    q: str
    k: str
    v: str
    mask: str | None
    causal: bool
    scale: float | None


@dataclass
class CpuAttention:
    """Proposes one candidate where the reference is one call of scaled dot product attention in bf16."""

    loaded: LoadedTask
    name: str = "attention"

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the candidate, None where the task is something else, there is no AMX, or it was offered already."""
        if task.device != "cpu" or "amx_bf16" not in cpu_flags() or any(a.proposer == self.name for a in history):
            return None
        found = _attention(self.loaded.reference)
        dtypes = {spec.name: spec.dtype for spec in task.cases[0].inputs}
        if found is None or any(dtypes[name] != "bfloat16" for name in (found.q, found.k, found.v)):
            return None
        mask_dtype = dtypes[found.mask] if found.mask else None
        if mask_dtype not in _MASKS or any(len(s.shape) != 4 for s in task.cases[0].inputs):
            return None
        native = resources.files(__package__).joinpath("attention_amx.cpp").read_text(encoding="utf-8")
        wrapper = _WRAPPER.format(
            arguments=", ".join(task.inputs),
            q=found.q,
            k=found.k,
            v=found.v,
            mask=found.mask,
            scale="depth**-0.5" if found.scale is None else repr(found.scale),
            kind=_CAUSAL if found.causal else _MASKS[mask_dtype],
        )
        head = (
            f'"""Attention through AMX tiles: {task.name}."""\n\nimport ctypes\n\nimport torch\n'
            f'from hotswap.optimizer.native import compile_cpp\n\nSOURCE = r"""\n{native}"""'
        )
        return Candidate(source=head + wrapper, proposer=self.name, parent=None, knobs={})


def _attention(reference: Any) -> _Attention | None:
    """Return the attention a reference computes, None where it does anything else or more."""
    graph = fx.symbolic_trace(reference).graph
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    if len(calls) != 1 or calls[0].target is not torch.nn.functional.scaled_dot_product_attention:
        return None
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = {**dict(zip(names, calls[0].args, strict=False)), **calls[0].kwargs}
    if given.get("dropout_p") or given.get("enable_gqa") or (given.get("is_causal") and given.get("attn_mask")):
        return None
    q, k, v, mask = (given.get(name) for name in names[:4])
    if not all(isinstance(n, fx.Node) for n in (q, k, v)) or not (mask is None or isinstance(mask, fx.Node)):
        return None
    return _Attention(
        str(q),
        str(k),
        str(v),
        str(mask) if mask is not None else None,
        bool(given.get("is_causal")),
        given.get("scale"),
    )
