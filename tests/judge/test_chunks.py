"""The oracle of a reference too large for memory is evaluated a few rows at a time, and is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hotswap.optimizer.judge import chunks, target
from hotswap.optimizer.judge.oracle import Oracle

ROWS = (((0, 0),), ((0, 1),))
AT_ONCE = 200


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tensor of 37 x 53 be too large."""
    monkeypatch.setattr(chunks, "SMALL", 100)
    monkeypatch.setattr(chunks, "LARGE", 500)
    monkeypatch.setattr(chunks, "AT_ONCE", AT_ONCE)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def labels(count: int, below: int) -> Tensor:
    return torch.randint(0, below, (count,), generator=torch.Generator().manual_seed(3))


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps how many fp64 values the largest result of any op had."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and leaf.dtype == torch.float64 and "empty" not in str(func):
                self.elements = max(self.elements, leaf.numel())
        return made


def softmax(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.softmax(x, -1),)


def loss(x: Tensor, wanted: Tensor) -> tuple[Tensor, ...]:
    return (torch.nn.functional.cross_entropy(x.float(), wanted),)


def several(x: Tensor) -> tuple[Tensor, ...]:
    wide = torch.log_softmax(x, -1)
    return wide.mean(-1), wide.amax(-1).sum(), x.argmax(-1), x.new_ones(x.shape[0]) * x.shape[1]


def head(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (torch.nn.functional.layer_norm(x, (x.shape[-1],)) @ weight.t(),)


def flattened(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.softmax(x.view(x.shape[0] * 2, -1), -1).sum(-1),)


CASES: list[tuple[Callable[..., tuple[Tensor, ...]], list[Tensor], tuple[chunks.Symbol, ...], int]] = [
    (softmax, [draw(37, 53)], ROWS, 37 * 53),
    (loss, [draw(37, 53), labels(37, 53)], (((0, 0), (1, 0)), ((0, 1),)), AT_ONCE),
    (several, [draw(37, 53)], ROWS, AT_ONCE),
    (head, [draw(19, 20), draw(53, 20)], (((0, 0),), ((0, 1), (1, 1)), ((1, 0),)), 53 * 20),
    (flattened, [draw(37, 54)], ROWS, AT_ONCE),
]


@pytest.mark.parametrize(("reference", "inputs", "symbols", "most"), CASES)
def test_chunks_give_the_same_values_in_less_memory(
    reference: Callable[..., tuple[Tensor, ...]],
    inputs: list[Tensor],
    symbols: tuple[chunks.Symbol, ...],
    most: int,
) -> None:
    whole, pieces = Oracle(reference, inputs), Oracle(reference, inputs, symbols)
    assert whole.chunks is None
    assert pieces.chunks is not None
    assert pieces.terms == whole.terms
    with _Largest() as seen:
        got = pieces(inputs)
    # No more than the output itself, or a weight, is ever there at once.
    assert seen.elements <= most
    for one, other in zip(got, whole(inputs), strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-15)


def test_every_value_is_bit_for_bit_the_same_where_rows_do_not_touch() -> None:
    inputs = [draw(37, 53)]
    torch.testing.assert_close(Oracle(softmax, inputs, ROWS)(inputs), Oracle(softmax, inputs)(inputs), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bounds_and_verdicts_are_the_same_in_blocks(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x = draw(37, 53).to(dtype)
    oracle = Oracle(softmax, [x])
    (whole,) = target.targets(softmax(x), oracle, [x], torch.Generator().manual_seed(1))
    answers = [softmax(x)[0] for _ in range(4)]
    answers[1][5, 7], answers[1][30, 2], answers[2][36, 52] = 0.9, 1.0, torch.nan
    answers[3] *= 1 + 2 * torch.finfo(dtype).eps
    said = [target.misfit([a], [whole]) for a in answers]
    monkeypatch.setattr(target, "_BLOCK", 5 * 53)
    (blocks,) = target.targets(softmax(x), oracle, [x], torch.Generator().manual_seed(1))
    assert whole.bound is not None
    assert blocks.bound is not None
    torch.testing.assert_close(blocks.bound, whole.bound, rtol=1e-12, atol=0)
    assert blocks.norm_bound == pytest.approx(whole.norm_bound, rel=1e-12)
    assert [target.misfit([a], [blocks]) for a in answers] == said
    assert said[0] is None
    assert "worst" in str(said[1])
    assert "at [30, 2]" in str(said[1])
    assert "1 of 1961 values, first [36, 52]" in str(said[2])


def _centred(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.softmax(x - x.mean(0, keepdim=True), -1),)


def _turned(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.softmax(x, -1).flip(0),)


def _added_up(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.softmax(x, -1).cumsum(0),)


def _numbered(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.softmax(x, -1) * torch.arange(x.shape[0], dtype=x.dtype)[:, None],)


@pytest.mark.parametrize("reference", [_centred, _turned, _added_up, _numbered])
def test_rows_that_look_at_each_other_are_not_taken_apart(reference: Callable[..., tuple[Tensor, ...]]) -> None:
    inputs = [draw(37, 53)]
    got, wanted = Oracle(reference, inputs, ROWS)(inputs), Oracle(reference, inputs)(inputs)
    torch.testing.assert_close(got, wanted, rtol=1e-14, atol=1e-15)


def test_equal_rows_do_not_make_rows_look_independent() -> None:
    same = torch.ones(37, 53)
    oracle = Oracle(_centred, [same], ROWS)
    torch.testing.assert_close(oracle([draw(37, 53)]), Oracle(_centred, [same])([draw(37, 53)]), rtol=1e-14, atol=1e-15)


def test_what_is_made_of_the_inputs_on_the_way_is_made_of_every_piece() -> None:
    inputs = [draw(37, 53)]
    doubled = Oracle(softmax, inputs, ROWS)(inputs, lambda t: t.double() * 2)
    torch.testing.assert_close(doubled, (torch.softmax(inputs[0].double() * 2, -1),))


def test_indices_of_rows_that_are_left_out_are_no_error() -> None:
    def picked(table: Tensor, at: Tensor) -> tuple[Tensor, ...]:
        return (torch.softmax(table, -1)[at],)

    inputs = [draw(37, 53), labels(9, 37)]
    got = Oracle(picked, inputs, (((0, 0),), ((0, 1),), ((1, 0),)))(inputs)
    torch.testing.assert_close(got, Oracle(picked, inputs)(inputs), rtol=1e-14, atol=1e-15)


def test_a_reference_that_reads_values_is_evaluated_whole() -> None:
    def cut(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.softmax(x, -1)[x[:, 0] > 0],)

    inputs = [draw(37, 53)]
    oracle = Oracle(cut, inputs, ROWS)
    assert oracle.chunks is None
    torch.testing.assert_close(oracle(inputs), (torch.softmax(inputs[0].double(), -1)[inputs[0][:, 0] > 0],))


def test_a_small_reference_is_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "SMALL", 1 << 20)
    assert Oracle(softmax, [draw(37, 53)], ROWS).chunks is None
