"""A plain PyTorch model with an odd forward, to show that nothing about a model is assumed.

Keyword-only arguments, a dict for an output, one block called twice with different shapes, and a head tied to the
embedding.

    hotswap run examples/odd_forward.py:make
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """A pre-norm feed-forward block with a gate."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(hidden.dtype) * self.scale
        return hidden + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class OddForward(nn.Module):
    """Scores tokens, and sums up their sequence, with the same block."""

    def __init__(self, words: int = 1000, width: int = 256, hidden: int = 1024) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.block = Block(width, hidden)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight  # tied

    def forward(self, *, tokens: Tensor, keep: Tensor, temperature: float = 1.0) -> dict[str, Tensor]:
        hidden = self.block(self.embed(tokens))  # (batch, length, width)
        mask = keep.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        summary = self.block(pooled)  # the same block, (batch, 1, width)
        logits = self.head(hidden + summary) / temperature
        return {"log_probs": functional.log_softmax(logits, dim=-1), "summary": summary.squeeze(1)}


def make() -> tuple[OddForward, dict[str, Tensor | float]]:
    """Return the model and one example call, as keyword arguments."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 1000, (8, 128))
    keep = torch.arange(128).expand(8, 128) < torch.randint(32, 129, (8, 1))
    return OddForward(), {"tokens": tokens, "keep": keep, "temperature": 0.7}
