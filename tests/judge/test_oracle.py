"""The oracle is the reference in fp64, whatever casts, constants and factories the reference has."""

from __future__ import annotations

import pytest
import torch

from hotswap.optimizer.judge.oracle import Oracle


def _casts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return ((x.to(torch.float32) + 1e-9).to(torch.float32) - 1.0,)


def _half(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    table = torch.full((4,), 1.0, dtype=torch.float16) + torch.arange(4, dtype=torch.float16) * 2**-12
    return (x * table + torch.zeros(4, dtype=torch.bfloat16),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cast_to_fp32_in_the_reference_does_not_survive(dtype: torch.dtype) -> None:
    (exact,) = Oracle(_casts, [torch.ones(4, dtype=dtype)])([torch.ones(4, dtype=dtype)])
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact, torch.full((4,), 1e-9, dtype=torch.float64), rtol=1e-6, atol=0.0)


def test_a_constant_made_in_half_precision_is_made_in_fp64() -> None:
    x = torch.ones(4, dtype=torch.float16)
    (exact,) = Oracle(_half, [x])([x])
    torch.testing.assert_close(exact, 1.0 + torch.arange(4, dtype=torch.float64) * 2**-12, rtol=1e-15, atol=0.0)


def test_a_softmax_from_half_to_float_runs_in_fp64() -> None:
    def softmax(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.softmax(x, -1, dtype=torch.float32),)

    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    (exact,) = Oracle(softmax, [x])([x])
    torch.testing.assert_close(exact, torch.softmax(x.double(), -1))


def test_integers_and_booleans_stay_what_they_are() -> None:
    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.argmax(-1), x > 0, x.to(torch.int32)

    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    assert [o.dtype for o in Oracle(several, [x])([x])] == [torch.int64, torch.bool, torch.int32]


@pytest.mark.parametrize(("shape", "terms"), [((6, 40), 40), ((6, 7, 9), 9)])
def test_the_longest_sum_is_found(shape: tuple[int, ...], terms: int) -> None:
    def mean(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x - x.mean(-1, keepdim=True),)

    assert Oracle(mean, [torch.ones(shape)]).terms == terms


def test_a_matmul_sums_over_its_inner_dimension() -> None:
    def product(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.nn.functional.linear(x, w),)

    assert Oracle(product, [torch.ones(2, 3, 50), torch.ones(4, 50)]).terms == 50
