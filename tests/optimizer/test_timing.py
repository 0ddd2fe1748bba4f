"""Intervals on ratios, on samples whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from hotswap.optimizer.timing import ratio_interval


def _noisy(source: np.random.Generator, mean: float, blocks: int = 8) -> list[float]:
    # Most blocks within 2%, one in ten hit by something else on the machine.
    noise = 1 + 0.02 * source.standard_normal(blocks) + 0.3 * (source.random(blocks) < 0.1)
    return [float(x) for x in mean * noise]


def test_equal_sides_are_called_different_at_most_five_times_in_a_hundred() -> None:
    source = np.random.default_rng(7)
    intervals = [ratio_interval(_noisy(source, 1000), _noisy(source, 1000), seed=i) for i in range(100)]
    assert sum(interval.excludes(1.0) for interval in intervals) <= 5


def test_a_gain_far_above_the_noise_is_always_seen() -> None:
    source = np.random.default_rng(8)
    assert all(ratio_interval(_noisy(source, 2000), _noisy(source, 1000), seed=i).low > 1.0 for i in range(50))


def test_exchanging_the_sides_gives_the_reciprocal() -> None:
    source = np.random.default_rng(9)
    one, other = _noisy(source, 1055), _noisy(source, 1000)
    there, back = ratio_interval(one, other, seed=3), ratio_interval(other, one, seed=3)
    assert (there.median, there.low, there.high) == pytest.approx(
        (1 / back.median, 1 / back.high, 1 / back.low), rel=1e-12
    )


def test_the_same_seed_gives_the_same_interval() -> None:
    one, other = [3.0, 1.0, 2.0, 5.0, 4.0], [2.0, 2.5, 1.5, 2.2, 1.8]
    assert ratio_interval(one, other, seed=1) == ratio_interval(one, other, seed=1)


def test_drift_that_both_sides_share_cancels() -> None:
    drift = [1000.0 * (1 + 0.1 * i) for i in range(8)]
    interval = ratio_interval([1.2 * x for x in drift], drift, seed=0)
    assert (interval.low, interval.high) == pytest.approx((1.2, 1.2))


def test_no_blocks_is_an_error_and_not_an_interval() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ratio_interval([], [1.0], seed=0)
