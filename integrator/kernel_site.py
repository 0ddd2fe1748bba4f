"""One winner at work in one patched model: its kernel in the verified domain, the original ops outside, all counted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..models.errors import CandidateRejected
from ..optimizer.winner import Domain, Winner
from .domain_guard import outside
from .kernel_source import load_kernel
from .packed_weights import PackedWeights
from .results import Engagement

logger = logging.getLogger(__name__)

Inputs = tuple[torch.Tensor, ...]
Outputs = tuple[torch.Tensor, ...]

NEEDS_GRAD = "an input requires grad"

# A served model sees many lengths; past this many distinct layouts the cached answers are dropped and asked again.
_REMEMBERED = 4096


@dataclass(frozen=True)
class Tally:
    """calls: of the kernel. fallbacks: by reason. broken: why the kernel is not asked any more, None while it is."""

    calls: int
    fallbacks: Counter[str]
    broken: str | None


class KernelSite:
    """A winner's kernel with its guard, packed weights, reference and counters, shared by all places of one region.

    reference: called with the region's inputs, returns a tuple of its outputs; it is the region's own graph.
    """

    def __init__(self, winner: Winner, reference: Callable[..., Outputs]) -> None:
        if winner.source is None or winner.domain is None:
            raise CandidateRejected(f"winner {winner.task}: choice {winner.choice!r} carries no kernel and domain")
        self.winner = winner
        self.reference = reference
        self.kernel = load_kernel(winner.source, winner.task)
        self.places: set[str] = set()
        self.calls = 0
        self.fallbacks: Counter[str] = Counter()
        self._domain: Domain = winner.domain
        self._device = winner.domain.device.split(":")[0]
        self._reasons: dict[tuple[Any, ...], str | None] = {}
        self._broken: str | None = None
        weights = [i for i, spec in enumerate(self._domain.inputs) if spec.role == "weight"]
        self._packed = PackedWeights(self.kernel.prepare, weights) if self.kernel.prepare is not None else None

    @property
    def repacked(self) -> int:
        """How often packed weights were found changed and packed again."""
        return self._packed.repacked if self._packed is not None else 0

    def tally(self) -> Tally:
        """Return what has been counted so far, to be given back by `set_tally`."""
        return Tally(self.calls, Counter(self.fallbacks), self._broken)

    def set_tally(self, tally: Tally) -> None:
        """Count on from an earlier tally: runs that only prepared something, as a capture does, are none."""
        self.calls, self.fallbacks, self._broken = tally.calls, Counter(tally.fallbacks), tally.broken

    def takes(self, inputs: Inputs) -> bool:
        """Whether inputs of this layout, fake ones too, lie in the kernel's domain."""
        return outside(self._domain, tuple(_sized(t) for t in inputs), self.kernel.contiguous) is None

    def drop_packed(self) -> None:
        """Let packed weights go, as large as weights as they are; a later call packs anew."""
        if self._packed is not None:
            self._packed.clear()

    def engagement(self) -> Engagement:
        """Return what this site has done so far."""
        return Engagement(self.winner.task, len(self.places), self.calls, self.fallbacks.total(), dict(self.fallbacks))

    def __call__(self, inputs: Inputs) -> Outputs:
        """Return the region's outputs for plain tensors; never with a gradient silently lost."""
        reason = self._broken or self.needs_original(inputs)
        if reason is not None:
            return self.fall_back(inputs, reason)
        layout = tuple([(t.shape, t.stride(), t.dtype, t.device) for t in inputs])
        seen = layout in self._reasons
        reason = self._reasons[layout] if seen else outside(self._domain, inputs, self.kernel.contiguous)
        outputs: Outputs = ()
        if reason is None:
            try:
                outputs = self._kernel_outputs(inputs)
            except Exception as error:  # a kernel is generated code: whatever it raises, the model must still answer
                reason = self._broken = f"kernel raised {type(error).__name__}"
                logger.exception("kernel of %s raised; its region runs the original ops from here on", self.winner.task)
            else:
                reason = None if seen else _aliasing(inputs, outputs)
        if not seen:
            self._remember(layout, reason)
        if reason is not None:
            return self.fall_back(inputs, reason)
        self.calls += 1
        return outputs

    def fall_back(self, inputs: Inputs, reason: str) -> Outputs:
        """Answer by the original ops and count why."""
        self.fallbacks[reason] += 1
        return tuple(self.reference(*inputs))

    def needs_original(self, inputs: Inputs) -> str | None:
        """Return why the mode the call runs in asks for the original ops, None where it does not."""
        if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
            return NEEDS_GRAD
        if torch.is_autocast_enabled(self._device):
            return "autocast is on"
        return None

    def _remember(self, layout: tuple[Any, ...], reason: str | None) -> None:
        if len(self._reasons) >= _REMEMBERED:
            self._reasons.clear()
        self._reasons[layout] = reason

    def _kernel_outputs(self, inputs: Inputs) -> Outputs:
        if self._packed is not None:
            outputs = self.kernel.call(*inputs, packed=self._packed.of(inputs))
        else:
            outputs = self.kernel.call(*inputs)
        return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def _sized(tensor: torch.Tensor) -> torch.Tensor:
    """Return a fake tensor of the sizes a symbolic one had while tracing: asking the symbols would add guards."""
    if not any(isinstance(n, torch.SymInt) for n in (*tensor.shape, *tensor.stride())):
        return tensor
    shape, stride = (
        [int(n.node.hint) if isinstance(n, torch.SymInt) else n for n in part()]
        for part in (tensor.size, tensor.stride)
    )
    with FakeTensorMode():
        return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)


def _aliasing(inputs: Inputs, outputs: Outputs) -> str | None:
    """Return a reason where an output shares memory with an input, which ops may not do; asked once for each layout."""
    owned = {t.untyped_storage().data_ptr() for t in inputs if t.numel()}
    shared = any(o.untyped_storage().data_ptr() in owned for o in outputs)
    return "kernel returned an alias of an input" if shared else None
