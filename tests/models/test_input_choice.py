"""Inputs for forwards whose signature does not say what they need."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from hotswap.models.input_choice import accepted, alternatives, runs_with


class Picky(nn.Module):
    """Takes ids or pixels, not both; keeps a table it makes at its first call."""

    table: Tensor | None = None

    def forward(self, input_ids: Tensor | None = None, pixel_values: Tensor | None = None) -> Tensor:
        if (input_ids is None) == (pixel_values is None):
            raise ValueError("exactly one of input_ids and pixel_values")
        given = pixel_values if input_ids is None else input_ids
        assert given is not None
        self.table = torch.zeros(given.shape)
        return given + self.table


def both() -> dict[str, Any]:
    return {"input_ids": torch.ones(2, 3), "pixel_values": torch.ones(2, 3)}


def test_the_described_inputs_are_tried_first_and_single_ones_last() -> None:
    tries = list(alternatives(("input_ids", "pixel_values"), ("input_ids", "pixel_values", "bbox")))
    assert tries[0] == ("input_ids", "pixel_values")
    assert tries[1] == ("input_ids", "pixel_values", "bbox")
    assert tries[2:] == [("input_ids",), ("pixel_values",), ("bbox",)]


def test_the_first_inputs_that_the_forward_takes_are_chosen() -> None:
    options = [both(), {"pixel_values": torch.ones(1)}]
    assert list(accepted(Picky(), iter(options))) == ["pixel_values"]


def test_where_none_is_taken_the_described_ones_stay() -> None:
    assert set(accepted(Picky(), iter([both(), {}]))) == {"input_ids", "pixel_values"}


def test_a_trial_on_shapes_leaves_nothing_in_the_model() -> None:
    model = Picky()
    assert runs_with(model, {"input_ids": torch.ones(2)})
    assert model.table is None


def test_a_trial_on_shapes_leaves_nothing_in_a_function_that_remembers() -> None:
    class Remembers(nn.Module):
        @staticmethod
        @lru_cache  # as detectors keep their anchors
        def anchors(size: int) -> Tensor:
            return torch.ones(size)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.anchors(len(x))

    model = Remembers()
    assert runs_with(model, {"x": torch.ones(2)})
    assert type(model(torch.ones(2))) is Tensor


def test_where_shapes_do_not_tell_the_forward_is_run() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum().item() != 2:
                raise ValueError("two ones are wanted")
            return x

    assert len(accepted(Counts(), iter([{"x": torch.ones(3)}, {"x": torch.ones(2)}]))["x"]) == 2


def test_a_branch_on_a_value_is_neither_yes_nor_no() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum().item() > 0 else -x

    assert runs_with(Asks(), {"x": torch.ones(2)}) is None
