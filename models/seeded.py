"""Run a block under a seed of its own, and give the caller's random streams back as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Seed torch for the block; the streams of the CPU and of `device` continue after it as if it had not run."""
    import torch

    # Named, because fork_rng saves every GPU of the machine otherwise, and warns of it.
    gpus = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        yield
