"""Inputs derived from recorded ones, for models that nobody told us anything about."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hotswap.integrator.variants import fresh, variants
from hotswap.models.workload import Call


def _shapes(call: Call) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(t.shape) for t in (*call.args, *call.kwargs.values()) if isinstance(t, torch.Tensor))


def _made(model: nn.Module, call: Call) -> list[Call]:
    def accepts(tried: Call) -> bool:
        try:
            model(*tried.args, **tried.kwargs)
        except Exception:  # as a user's model says no
            return False
        return True

    return list(variants(model, call, accepts))


class Masked(nn.Module):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return input_ids * attention_mask


def _padded(call: Call, side: str) -> torch.Tensor:
    (found,) = [made for made in _made(Masked(), call) if made.name.endswith(f"padded {side}")]
    mask = found.kwargs["attention_mask"] if found.kwargs else found.args[1]
    assert isinstance(mask, torch.Tensor)
    return mask


@pytest.mark.parametrize("by_keyword", [True, False])
def test_padding_keeps_the_first_row_whole_and_a_quarter_of_the_last(by_keyword: bool) -> None:
    ids, mask = torch.ones(3, 8, dtype=torch.int64), torch.ones(3, 8, dtype=torch.int64)
    call = Call(kwargs={"input_ids": ids, "attention_mask": mask}) if by_keyword else Call((ids, mask))
    assert _padded(call, "right").tolist() == [[1] * 8, [1] * 5 + [0] * 3, [1] * 2 + [0] * 6]
    assert _padded(call, "left").tolist() == [[1] * 8, [0] * 3 + [1] * 5, [0] * 6 + [1] * 2]
    assert mask.all()


def test_a_single_row_is_padded_too() -> None:
    ids = torch.ones(1, 8, dtype=torch.int64)
    assert _padded(Call((ids, torch.ones_like(ids))), "left").tolist() == [[0] * 6 + [1] * 2]


def test_a_batch_of_one_becomes_two_and_a_larger_one_is_halved() -> None:
    model = nn.Linear(4, 4)
    assert [_shapes(c) for c in _made(model, Call((torch.ones(1, 4),)))] == [((1, 4),), ((2, 4),)]
    assert [_shapes(c) for c in _made(model, Call((torch.ones(6, 4),)))] == [((6, 4),), ((3, 4),)]


def test_a_width_that_weights_depend_on_is_left_alone_and_the_length_found_beside_it() -> None:
    shapes = [_shapes(made)[0] for made in _made(nn.Linear(4, 4), Call((torch.ones(2, 6, 4),)))]
    assert shapes == [(2, 6, 4), (1, 6, 4), (2, 5, 4), (2, 3, 4), (2, 1, 4)]


def test_a_length_equal_to_the_width_is_shrunk_alone() -> None:
    shapes = [_shapes(made)[0] for made in _made(nn.Linear(4, 4), Call((torch.ones(2, 4, 4),)))]
    assert (2, 3, 4) in shapes


def test_both_sides_of_an_image_shrink_together_where_the_model_takes_any_size() -> None:
    shapes = [_shapes(made)[0] for made in _made(nn.Conv2d(3, 4, 3, padding=1), Call((torch.ones(2, 3, 8, 8),)))]
    assert shapes == [(2, 3, 8, 8), (1, 3, 8, 8), (2, 3, 7, 7), (2, 3, 4, 4), (2, 3, 1, 1)]


def test_sizes_shared_by_inputs_change_in_all_of_them() -> None:
    class Add(nn.Module):
        def forward(self, x: torch.Tensor, bias: torch.Tensor, scale: float) -> torch.Tensor:
            return (x + bias) * scale

    for made in _made(Add(), Call((torch.ones(2, 6, 3), torch.ones(2, 6, 3), 2.0))):
        assert len(set(_shapes(made))) == 1
        assert made.args[2] == 2.0


def test_a_model_that_takes_one_size_only_gets_the_recorded_input_alone() -> None:
    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, 12)

    assert [made.name for made in _made(Fixed(), Call((torch.ones(2, 12),)))] == ["call"]


def test_a_call_without_tensors_is_its_own_only_variant() -> None:
    class Count(nn.Module):
        def forward(self, n: int) -> int:
            return n

    assert len(_made(Count(), Call((3,)))) == 1


def test_fresh_inputs_keep_strides_and_aliases_and_share_nothing_with_the_users() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    grown = (torch.ones(2, requires_grad=True) * 2).expand(3, 2)
    args: tuple[Any, ...] = (base.t(), {"again": base[1:], "same": base}, grown)
    copied = fresh(Call(args)).args
    assert copied[0].stride() == (1, 4)
    copied[0].mul_(0)
    assert copied[1]["again"].eq(0).all()
    assert copied[1]["same"].eq(0).all()
    assert base.sum() == 66
    assert copied[2].tolist() == grown.tolist()
