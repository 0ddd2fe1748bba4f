"""The divergence of a student's next-token distribution from a teacher's, a number a token, and the teacher's entropy.

Two softmaxes over a vocabulary, of which nothing but three sums is wanted: eager writes them all to memory.

    hotswap task new examples/regions/distillation.py --dtype bf16
    hotswap optimize distillation-task --budget 60s
"""

from __future__ import annotations

import torch
from torch import Tensor

TOKENS = 512
VOCABULARY = 32000
CONSTS = {"temperature": 2.0}


def reference(teacher: Tensor, student: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return (divergence, entropy) in float32, one of each a row of logits (tokens, vocabulary)."""
    wanted = torch.log_softmax(teacher.float() / temperature, -1)
    given = torch.log_softmax(student.float() / temperature, -1)
    chance = wanted.exp()
    return (chance * (wanted - given)).sum(-1), -(chance * wanted).sum(-1)


def inputs(seed: int, shape_index: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    teacher = 2 * torch.randn(TOKENS, VOCABULARY, generator=generator)
    return teacher, teacher + torch.randn(TOKENS, VOCABULARY, generator=generator)
