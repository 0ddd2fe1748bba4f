"""A task as the extractor would write it, for tests that need one and not its inputs."""

from __future__ import annotations

import pytest

from hotswap.extractor.task import ShapeCase, Site, Task, TensorSpec


@pytest.fixture
def gelu() -> Task:
    """A memory-bound task with one size symbol, its floor at a quarter of eager's time."""
    spec = TensorSpec("x", (512, 384), (384, 1), 0, "float32", "activation")
    return Task(
        name="gelu",
        fingerprint="fingerprint-of-gelu",
        kind="memory",
        device="cpu",
        ops=("gelu",),
        inputs=("x",),
        outputs=1,
        cases=(ShapeCase("call", (spec,), 6, 6.0, 20.0),),
        sites=(Site("layer.0.act", "GELU", ("gelu",), "model.py:1", 0),),
        eager_us=120.0,
        floor_us=30.0,
        share=0.2,
        ceiling=1.18,
        size_symbols=(((0, 0),),),
    )
