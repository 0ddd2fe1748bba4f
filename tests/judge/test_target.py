"""What the bound lets pass and what it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hotswap.optimizer.judge.oracle import Oracle
from hotswap.optimizer.judge.target import Target, misfit, targets

Reference = Callable[..., tuple[torch.Tensor, ...]]


def wanted(reference: Reference, *inputs: torch.Tensor) -> tuple[Target, ...]:
    return targets(reference(*inputs), Oracle(reference, inputs), inputs, torch.Generator().manual_seed(1))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounding_inside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return ((x * x).sum(-1, keepdim=True) * x,)


def layer_norm(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-12),)


def total(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.sum(-1),)


def test_the_reference_itself_passes() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        x = draw(64, 48).to(dtype)
        assert misfit(rounding_inside(x), wanted(rounding_inside, x)) is None


def test_a_more_accurate_kernel_passes_where_a_bf16_reference_is_itself_wrong() -> None:
    x = draw(64, 48).to(torch.bfloat16)
    exact = rounding_inside(x.double())[0].to(torch.bfloat16)
    assert not torch.equal(exact, rounding_inside(x)[0])
    assert misfit([exact], wanted(rounding_inside, x)) is None


def test_a_naive_fp32_sum_of_many_values_passes() -> None:
    x = draw(8, 4096).abs()
    naive = x.cumsum(-1)[:, -1]
    assert misfit([naive], wanted(total, x)) is None


def test_a_bf16_sum_does_not() -> None:
    x = draw(8, 4096).abs()
    assert misfit([x.bfloat16().sum(-1).float()], wanted(total, x)) is not None


def test_fp32_arithmetic_does_not_pass_for_fp64() -> None:
    x = draw(64, 48).double()
    assert misfit([rounding_inside(x.float())[0].double()], wanted(rounding_inside, x)) is not None


def test_one_wrong_value_is_found_and_placed() -> None:
    x = draw(64, 48)
    out = rounding_inside(x)[0].clone()
    out[17, 3] += 0.25
    problem = misfit([out], wanted(rounding_inside, x))
    assert problem is not None
    assert problem.startswith("wrong at 1 of 3072 values, worst 0.25 at [17, 3], bound ")


def test_a_wrong_small_row_beside_a_huge_one_is_found() -> None:
    x = torch.cat([draw(1, 48) * 1e4, draw(1, 48) * 1e-3])
    out = rounding_inside(x)[0].clone()
    out[1] = 0
    assert "wrong at 48 of 96" in (misfit([out], wanted(rounding_inside, x)) or "")


def test_a_variance_by_difference_of_squares_fails_on_a_large_offset() -> None:
    x = draw(16, 256) + 300
    mean = x.mean(-1, keepdim=True)
    squares = x.square().mean(-1, keepdim=True) - mean.square()
    wrong = (x - mean) * torch.rsqrt(squares + 1e-12)
    assert misfit([wrong], wanted(layer_norm, x)) is not None
    two_passes = (x - mean) * torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + 1e-12)
    assert misfit([two_passes], wanted(layer_norm, x)) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_no_wildcard(value: float) -> None:
    x = draw(16, 48)
    out = rounding_inside(x)[0].clone()
    out[3, 4] = value
    assert "finite where the reference is not, or the reverse" in (misfit([out], wanted(rounding_inside, x)) or "")


def test_an_infinity_of_the_reference_must_come_out_with_its_sign() -> None:
    def logarithm(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.log(x),)

    x = torch.tensor([0.0, 1.0, 2.0])
    assert misfit(logarithm(x), wanted(logarithm, x)) is None
    assert misfit([-logarithm(x)[0]], wanted(logarithm, x)) is not None
    assert misfit([torch.nan_to_num(logarithm(x)[0])], wanted(logarithm, x)) is not None


def test_integers_must_be_exact() -> None:
    def winner(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.argmax(-1),)

    x = draw(16, 48)
    assert misfit(winner(x), wanted(winner, x)) is None
    assert "must be exact" in (misfit([winner(x)[0] + 1], wanted(winner, x)) or "")


def test_the_wrong_output_of_several_is_named() -> None:
    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2, x.exp()

    x = draw(16, 48)
    assert (misfit([x * 2, x], wanted(both, x)) or "").startswith("output 1: wrong at")


def test_bounds_taken_over_to_other_values_still_tell_right_from_wrong() -> None:
    (target,) = wanted(rounding_inside, draw(64, 48).to(torch.bfloat16))
    x = (draw(64, 48, seed=5) * 1.3).to(torch.bfloat16)
    exact = rounding_inside(x.double())[0]
    assert misfit(rounding_inside(x), [target.at(exact)]) is None
    assert misfit([rounding_inside(x)[0] * 1.1], [target.at(exact)]) is not None


def one_column(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.nn.functional.linear(x, w),)


def test_rows_of_one_value_are_judged_at_the_scale_of_their_neighbours() -> None:
    """Where a sum cancels, an honest kernel is as far off as everywhere else."""
    x, w = draw(64, 32).bfloat16(), draw(1, 32, seed=1).bfloat16()
    x[5, 0] = 0.0
    x[5, 0] = -((x[5].double() @ w[0].double()) / w[0, 0].double())
    exact = one_column(x.double(), w.double())[0]
    off = exact.clone()
    off[5] += 0.5 * torch.finfo(torch.bfloat16).eps * exact.abs().max()
    target = targets(one_column(x, w), Oracle(one_column, (x, w)), (x, w), torch.Generator().manual_seed(0))
    assert misfit((off.to(torch.bfloat16),), target) is None
