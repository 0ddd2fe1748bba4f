"""Stage 2: every recorded case, and the shapes and layouts next to them."""

from __future__ import annotations

from ..trial import Trial


def shapes(trial: Trial) -> dict[str, str]:
    """Reject what is wrong at another size, stride or offset that its declared constraints allow."""
    tried = [s for s in [*trial.bank.recorded[1:], *trial.bank.neighbours] if trial.allows(s)]
    for sample in tried:
        trial.check(sample)
    skipped = [s.name for s in trial.bank.neighbours if not trial.allows(s)]
    return {
        "tried": "; ".join(s.name for s in tried) or "none",
        "outside its constraints": "; ".join(skipped) or "none",
        "refused by the reference": "; ".join(trial.bank.refused) or "none",
    }
