"""A task as the extractor would write it, for tests that need one and not its inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotswap.extractor.task import ShapeCase, Site, Task, TensorSpec


def gelu_task(**changes: Any) -> Task:
    """Return a memory-bound task with one size symbol, its floor a quarter of eager's time. changes: of fields."""
    spec = TensorSpec("x", (512, 384), (384, 1), 0, "float32", "activation")
    made = Task(
        name="gelu",
        fingerprint="fingerprint-of-gelu",
        kind="memory",
        device="cpu",
        ops=("gelu",),
        inputs=("x",),
        outputs=1,
        cases=(ShapeCase("call", (spec,), 6, 6.0, 20.0),),
        sites=(Site("layer.0.act", "GELU", ("gelu",), "return self.act(x)", 0),),
        eager_us=120.0,
        floor_us=30.0,
        share=0.2,
        ceiling=1.18,
        size_symbols=(((0, 0),),),
    )
    return replace(made, **changes)
