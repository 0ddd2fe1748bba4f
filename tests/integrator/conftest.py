"""Fixtures: runs whose winners are hand-made, from the regions a small model really has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from stand_ins import winners_of, write_winners

from hotswap.optimizer.winner import Winner

MakeWinners = Callable[..., list[Winner]]
WriteRun = Callable[[list[Winner]], Path]


@pytest.fixture
def make_winners() -> MakeWinners:
    """Give a function that, for a call, returns one winner a memory region, its kernel the region's own ops."""
    made: MakeWinners = winners_of
    return made


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Give a function that writes winners into a run directory."""
    return lambda winners: write_winners(tmp_path / f"run{len(list(tmp_path.iterdir()))}", winners)
