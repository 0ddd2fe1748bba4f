"""Fixtures of the rewrites' tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(3, 97, (2, 12), generator=torch.Generator().manual_seed(0))
