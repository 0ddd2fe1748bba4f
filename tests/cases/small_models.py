"""Small real models that the field cases share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Norm(nn.Module):
    """RMSNorm as model code spells it: wide inside, the weight applied in the input's dtype."""

    def __init__(self, width: int = 32, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class Block(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.gate = nn.Linear(width, width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Net(nn.Module):
    """Blocks in a row. checkpointed: whether each is recomputed in the backward, reentrantly or not."""

    def __init__(self, width: int = 32, layers: int = 2, *, checkpointed: bool | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = Norm(width)
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x) if self.checkpointed is None else checkpoint(block, x, use_reentrant=self.checkpointed)
        return self.norm(x)


def net(**how: Any) -> Net:
    """Return the same net each time, in eval mode."""
    torch.manual_seed(0)
    return Net(**how).eval()


def batch(length: int = 9, width: int = 32, seed: int = 1) -> torch.Tensor:
    return torch.randn(2, length, width, generator=torch.Generator().manual_seed(seed))


def tiny_llama(*, tied: bool = True, layers: int = 2) -> Any:
    """Return a random Llama of 64 channels, the same each time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()
