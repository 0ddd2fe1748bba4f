"""Intervals for ratios of times: what a list of interleaved blocks says about who is faster, and how surely."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .verdict import Interval, Race

CONFIDENCE = 0.99
RESAMPLES = 4000


def ratio_interval(baseline_us: Sequence[float], candidate_us: Sequence[float], *, seed: int) -> Interval:
    """Return (baseline / candidate) time with its 99% bootstrap interval; above 1 the candidate is faster.

    Sides of equal length are taken as rounds: a round is drawn whole, so drift that both sides share cancels, and
    exchanging the sides gives exactly the reciprocal. The answer depends on the samples and `seed` alone.
    """
    baseline, candidate = np.asarray(baseline_us, dtype=np.float64), np.asarray(candidate_us, dtype=np.float64)
    if not len(baseline) or not len(candidate):
        raise ValueError(f"{len(baseline)} and {len(candidate)} blocks; a ratio needs at least one on each side")
    draws = np.random.default_rng(seed)
    rounds = draws.integers(0, len(baseline), (RESAMPLES, len(baseline)))
    others = (
        rounds if len(candidate) == len(baseline) else draws.integers(0, len(candidate), (RESAMPLES, len(candidate)))
    )
    ratios = np.sort(np.median(baseline[rounds], axis=1) / np.median(candidate[others], axis=1))
    # Order statistics as far from one end as from the other: interpolating would break the reciprocal.
    tail = int(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Interval(float(np.median(baseline) / np.median(candidate)), float(ratios[tail]), float(ratios[-1 - tail]))


def weighted_rounds(races: Sequence[Race], name: str) -> list[float] | None:
    """Return an arm's microseconds in each round, summed over the shapes by their weights.

    None where there is no race or the arm did not run in all of them.
    """
    sides = [(r.weight, next((a.samples_us for a in r.arms if a.name == name), ())) for r in races]
    rounds = min((len(samples) for _, samples in sides), default=0)
    return [sum(weight * samples[i] for weight, samples in sides) for i in range(rounds)] or None
