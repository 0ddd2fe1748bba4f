"""Stage 5: earlier outputs stay what they were, nothing is remembered from call to call, nothing is left running."""

from __future__ import annotations

import torch

from ..bank import Sample
from ..target import misfit
from ..trial import Rejected, Trial


def integrity(trial: Trial) -> dict[str, str]:
    """Reject static buffers, answers and packed weights that are remembered, and leftovers."""
    fresh = trial.bank.fresh
    if len(fresh) < 3:
        return {"not tried": "the reference refuses fresh values at the recorded shape"}
    one, weights_kept, other = fresh
    first = trial.check(one, keep=True)
    # The same pointers, the same weights, other activations: an answer remembered by either is now wrong.
    _remembered(trial, weights_kept, "the contents behind the same pointers changed")
    later = trial.again(0, one)
    for number, (before, after, view) in enumerate(zip(first, later, one.is_view, strict=True)):
        if not view and not torch.equal(before.contiguous().view(torch.uint8), after.contiguous().view(torch.uint8)):
            raise Rejected(f"output {number} of an earlier call was overwritten by a later one: a static buffer")
    # Other weights in place of the old ones; `prepare` is run again, anything kept besides is stale.
    _remembered(trial, other, "the weights were changed in place")
    others = trial.worker.others()
    if others:
        raise Rejected(f"left {others} other process(es) running")
    return {
        "calls": "fresh contents and then fresh weights behind the same pointers",
        "earlier output": "kept its bits",
    }


def _remembered(trial: Trial, sample: Sample, what: str) -> None:
    problem = misfit(trial.call(sample), sample.targets)
    if problem:
        raise Rejected(f"after {what} the answer is {problem}: something is remembered from an earlier call")
