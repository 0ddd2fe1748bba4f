"""A softmax over attention scores with a mask, a soft cap and a learned sink a head that takes part and is dropped.

hotswap task new examples/regions/sink_softmax.py --dtype bf16
hotswap optimize sink_softmax-task --budget 60s
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

HEADS = 16
TOKENS = 509  # odd on purpose: no row but the first begins at an aligned address
CONSTS = {"cap": 20.0}


def reference(scores: Tensor, mask: Tensor, sink: Tensor, cap: float) -> Tensor:
    """Return the probabilities. scores: (batch, heads, queries, keys). mask: added, (queries, keys). sink: (heads,)."""
    capped = cap * torch.tanh(scores.float() / cap) + mask
    top = torch.maximum(capped.amax(-1, keepdim=True), sink.float()[:, None, None])
    raised = torch.exp(capped - top)
    return (raised / (raised.sum(-1, keepdim=True) + torch.exp(sink.float()[:, None, None] - top))).to(scores.dtype)


def inputs(seed: int, shape_index: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(1, HEADS, TOKENS, TOKENS, generator=generator)
    mask = torch.full((TOKENS, TOKENS), -1e4).triu(1)
    return scores, mask, nn.Parameter(torch.randn(HEADS, generator=generator))
