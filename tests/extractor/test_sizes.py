"""Sizes that vary together are found, by few runs where many are equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hotswap.extractor.sizes import size_symbols


def symbols(run: Callable[..., Any], *shapes: tuple[int, ...]) -> tuple[tuple[tuple[int, int], ...], ...]:
    def make(wanted: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        return [torch.empty(shape, device="meta") for shape in wanted]

    return size_symbols(run, [shapes], make)


def test_equal_sizes_that_vary_apart_are_symbols_of_their_own() -> None:
    def run(a: Any, b: Any, c: Any, d: Any) -> Any:
        return a + b, c * d

    assert symbols(run, (5,), (5,), (5,), (5,)) == (((0, 0), (1, 0)), ((2, 0), (3, 0)))


def test_a_size_beside_one_that_is_fixed_is_found() -> None:
    def run(a: Any, b: Any) -> Any:
        return a.view(-1, 8) + b

    assert symbols(run, (8, 8), (8, 8)) == (((0, 0), (1, 0)),)


def test_two_dims_among_many_that_are_fixed_are_found() -> None:
    def run(*inputs: Any) -> Any:
        return inputs[0] + inputs[9], [each.view(6) for each in inputs[1:9]]

    assert symbols(run, *[(6,)] * 10) == (((0, 0), (9, 0)),)


def test_dozens_of_one_size_cost_a_few_runs_each() -> None:
    runs = 0

    def run(*inputs: Any) -> Any:
        nonlocal runs
        runs += 1
        total = inputs[0]
        for each in inputs[1:]:
            total = total + each
        return total

    many = 40
    assert symbols(run, *[(7,)] * many) == (tuple((i, 0) for i in range(many)),)
    assert runs < 4 * many  # all pairs and triples would be 820
