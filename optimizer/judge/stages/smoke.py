"""Stage 1: load the candidate into a clean process and call it once on the captured inputs."""

from __future__ import annotations

from ..trial import Rejected, Trial


def smoke(trial: Trial) -> dict[str, str]:
    """Reject what does not load, or is wrong on the very inputs that were recorded."""
    trial.load()
    first = trial.bank.recorded[0]
    if not trial.allows(first):
        raise Rejected(f"its constraints exclude the recorded case {first.name}, so it would never run")
    trial.check(first)
    return {"case": first.name, "label": trial.label or "none", "library calls": trial.library_calls()}
