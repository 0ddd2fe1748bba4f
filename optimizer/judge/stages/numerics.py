"""Stage 3: values that break sloppy arithmetic, each held to the fp64 oracle."""

from __future__ import annotations

import torch

from ..trial import Trial


def numerics(trial: Trial) -> dict[str, str]:
    """Reject what is farther from the oracle than the bound at any value of any family; keep the closest call."""
    evidence: dict[str, str] = {}
    for sample in [*trial.bank.families, *(s for s in trial.bank.mixed if s)]:
        if not trial.allows(sample):
            continue
        outputs = trial.check(sample)
        worst = 0.0
        for out, target in zip(outputs, sample.targets, strict=True):
            if target.exact is not None and target.bound is not None and out.numel():
                error = (out.to(torch.float64) - target.exact).abs()
                used = torch.where(torch.isfinite(error), error / target.bound, 0.0)
                worst = max(worst, float(used.max()))
        evidence[sample.name] = f"worst error {worst:.2f} of its bound"
    return evidence
