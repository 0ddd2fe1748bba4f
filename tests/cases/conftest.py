"""Fixtures of the field cases: a function that patches a model with stand-in winners, so that no search is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stand_ins import winners_of, write_winners
from torch import nn

from hotswap.integrator.patch import Patch, Way, patch
from hotswap.optimizer.winner import Winner

StandIn = Callable[..., Path]
Patched = Callable[..., Patch]


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    """Give a function that writes a run with a winner for each memory region the call meets."""

    def made(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Path:
        return write_winners(tmp_path / f"run{len(list(tmp_path.iterdir()))}", winners_of(model, *args, **kwargs))

    return made


@pytest.fixture
def save_run(tmp_path: Path) -> Callable[[list[Winner]], Path]:
    """Give a function that writes a run with these winners."""
    return lambda winners: write_winners(tmp_path / f"run{len(list(tmp_path.iterdir()))}", winners)


@pytest.fixture
def patched(stand_in: StandIn) -> Patched:
    """Give a function that patches a model in place with stand-ins for all that one call meets."""

    def made(model: nn.Module, *args: Any, way: Way = "graph", **kwargs: Any) -> Patch:
        return patch(model, stand_in(model.forward, *args, **kwargs), way=way)

    return made
