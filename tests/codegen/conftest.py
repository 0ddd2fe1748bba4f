"""Kernels built once a session, and the same random numbers for every test."""

from __future__ import annotations

import pytest
import torch
from loop_regions import Kernels


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    return Kernels()


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(7)
