"""Stage 4: the same inputs give the same bits, whatever lay in the memory before."""

from __future__ import annotations

import torch

from ..trial import POISON, Rejected, Trial


def determinism(trial: Trial) -> dict[str, str]:
    """Reject what gives other bits on a second call, with fresh memory filled with another pattern."""
    sample = trial.bank.recorded[0]
    first = trial.call(sample)
    for byte in (POISON, 0x55, 0xAA):
        again = trial.call(sample, poison=byte)
        for number, (one, other) in enumerate(zip(first, again, strict=True)):
            differ = int((_bits(one) != _bits(other)).sum())
            if differ:
                raise Rejected(
                    f"output {number} differs at {differ} of {one.numel()} values between two equal calls: "
                    "it depends on what lay in memory, on a count of calls or on a race"
                )
    return {"calls": "4, on memory filled with 3 patterns"}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.contiguous()
    return dense.view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}[dense.element_size()]
    )
