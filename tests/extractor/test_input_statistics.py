"""What a task says of its inputs' values, whatever the memory it takes to say it."""

from __future__ import annotations

import pytest
import torch

from hotswap.extractor import task_inputs
from hotswap.extractor.task_inputs import _statistics


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_statistics_made_in_blocks_are_those_of_the_whole(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_inputs, "_BLOCK", 7)
    values = (100 + 5 * torch.randn(13, 17, generator=torch.Generator().manual_seed(3))).to(dtype).t()
    wide = values.double()
    wanted = {"low": wide.min(), "high": wide.max(), "mean": wide.mean(), "std": wide.std(correction=0)}
    assert _statistics(values) == pytest.approx({name: value.item() for name, value in wanted.items()}, rel=1e-12)


def test_values_that_are_not_finite_are_left_out_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_inputs, "_BLOCK", 2)
    masked = torch.tensor([-torch.inf, torch.nan, 1.0, -torch.inf, 3.0, torch.inf])
    assert _statistics(masked) == {"low": 1.0, "high": 3.0, "mean": 2.0, "std": 1.0}


@pytest.mark.parametrize(
    "empty", [torch.empty(0, 3), torch.full((4,), torch.nan), torch.ones(2, dtype=torch.complex64)]
)
def test_nothing_is_said_of_values_of_which_none_is_finite_and_real(empty: torch.Tensor) -> None:
    assert _statistics(empty) == {}


def test_no_more_than_a_block_is_ever_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_inputs, "_BLOCK", 64)
    widened: list[int] = []
    real = torch.isfinite

    def watched(values: torch.Tensor) -> torch.Tensor:
        widened.append(values.numel())
        return real(values)

    monkeypatch.setattr(torch, "isfinite", watched)
    _statistics(torch.randn(1000))
    assert max(widened) == 64
