"""Limits of a machine that does not exist, so that floors are round numbers."""

from __future__ import annotations

import pytest

from hotswap.profiler.recording import Limits


@pytest.fixture
def limits() -> Limits:
    """1 GB/s is 1000 bytes a us; 1 TFLOP/s is 1e6 FLOPs a us."""
    return Limits(
        device="cpu",
        copy_gb_s=1.0,
        matmul_tflop_s={"float32": 1.0, "bfloat16": 2.0},
        launch_us=2.0,
        cache_bytes=0,
        measured_at="2026-01-01T00:00:00Z",
    )
