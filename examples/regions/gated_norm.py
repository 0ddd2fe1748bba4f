"""A gated RMS norm with a soft cap and two outputs: no library has it, and no template of ours is for it.

hotswap task new examples/regions/gated_norm.py --dtype bf16
hotswap optimize gated_norm-task --budget 60s
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

SHAPES = {"prefill": 1, "decode": 16}
ROWS = (2048, 8)
WIDTH = 2880
CONSTS = {"cap": 30.0, "eps": 1e-6}


def reference(x: Tensor, gate: Tensor, residual: Tensor, weight: Tensor, cap: float, eps: float) -> tuple[Tensor, ...]:
    """Return the residual stream with the capped x added, and its norm times the gate."""
    stream = residual + cap * torch.tanh(x / cap)
    wide = stream.float()
    normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight
    return stream, normed * functional.silu(gate)


def inputs(seed: int, shape_index: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    x, gate, residual = (torch.randn(ROWS[shape_index], WIDTH, generator=generator) for _ in range(3))
    return 8 * x, gate, residual, nn.Parameter(1 + 0.1 * torch.randn(WIDTH, generator=generator))
