"""Offer scaled dot product attention through one back end of torch after another; which is fastest is measured.

torch chooses by rules that know neither shape nor device: causal attention over 2048 keys of 64 took 98 us by its
choice on an H200 and 60 us through cuDNN. A back end that does not take a call raises, and is rejected for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from ...extractor.load_task import LoadedTask
from ...extractor.task import Task
from ..attempt import Attempt, Knob
from ..candidate import Candidate
from .attention_call import attention_call
from .kernel_file import next_candidate

_SOURCE = '''"""Attention through {backend} (a library call)."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

LABEL = "library call"


def kernel({arguments}):
    with sdpa_kernel(SDPBackend.{backend}):
        return torch.nn.functional.scaled_dot_product_attention({call})
'''

# Which take a mask: flash attention does not, whatever is in it.
_BACKENDS: dict[Knob, bool] = {"CUDNN_ATTENTION": True, "FLASH_ATTENTION": False, "EFFICIENT_ATTENTION": True}


@dataclass
class AttentionChoice:
    """Proposes a candidate a back end where the reference is one call of scaled dot product attention, no dropout."""

    loaded: LoadedTask
    name: str = "attention-choice"
    _given: dict[str, Any] | None = field(default=None, init=False, repr=False)
    _looked: bool = field(default=False, init=False, repr=False)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next back end, None where the task is something else, not on a CUDA device, or all were tried."""
        if not task.device.startswith("cuda"):
            return None
        if not self._looked:
            self._given, self._looked = attention_call(self.loaded.reference), True
        given = self._given
        if given is None:
            return None
        masked = given.get("attn_mask") is not None
        backends = [name for name, takes_mask in _BACKENDS.items() if takes_mask or not masked]

        def emit(knobs: dict[str, Knob]) -> str:
            call = ", ".join(f"{k}={v if isinstance(v, fx.Node) else repr(v)}" for k, v in given.items())
            return _SOURCE.format(backend=knobs["backend"], arguments=", ".join(task.inputs), call=call)

        first: list[dict[str, Knob]] = [{"backend": b} for b in backends]
        return next_candidate(self.name, history, emit, first, {}, rejections=len(backends))
