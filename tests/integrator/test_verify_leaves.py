"""One leaf at a time: what a kernel may round differently, and what it may not change."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from hotswap.integrator.leaf_check import Judged, agreement, compare
from hotswap.integrator.output_tree import Leaf, flatten, snapshot, structure_difference


@dataclass
class Answer:
    logits: torch.Tensor
    loss: torch.Tensor | None
    cache: Any


class Pair(NamedTuple):
    left: torch.Tensor
    right: int


class Cache:
    """Not a pytree and not a dataclass, as key-value caches are."""

    __slots__ = ("keys", "length")

    def __init__(self, keys: torch.Tensor) -> None:
        self.keys, self.length = keys, 3


def _judge(eager: torch.Tensor, swapped: torch.Tensor, wider: torch.Tensor | None = None) -> Judged:
    return compare(Leaf("output", eager), Leaf("output", swapped), wider)


def test_every_tensor_of_a_nested_output_has_a_name() -> None:
    one = torch.ones(2)
    output = (Answer(one, None, Cache(one)), {"aux": [one, Pair(one, 7)]}, OrderedDict(z=None))
    paths = {leaf.path: leaf.value for leaf in flatten(output)}
    assert list(paths) == [
        "output[0].logits",
        "output[0].loss",
        "output[0].cache.keys",
        "output[0].cache.length",
        "output[1].aux[0]",
        "output[1].aux[1].left",
        "output[1].aux[1].right",
        "output[2].z",
    ]
    assert paths["output[0].loss"] is None
    assert paths["output[1].aux[1].right"] == 7


def test_an_output_that_contains_itself_ends() -> None:
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    assert [leaf.path for leaf in flatten(loop)] == ["output[0]", "output[1]"]


def test_a_snapshot_does_not_change_with_the_buffer_the_output_was_a_view_of() -> None:
    buffer = torch.zeros(4)
    (leaf,) = snapshot(buffer[:2])
    buffer.fill_(1.0)
    assert leaf.value.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("expected", "got", "names"),
    [
        ((torch.ones(2), None), (torch.ones(2), torch.ones(2)), r"output\[1\]: expected NoneType, got Tensor"),
        ((torch.ones(2),), (torch.ones(3),), r"output\[0\]: expected shape \[2\], got \[3\]"),
        ((torch.ones(2),), (torch.ones(2, dtype=torch.float64),), r"expected dtype torch.float32, got torch.float64"),
        ({"a": 1}, {"a": 2}, "output.a: expected 1, got 2"),
        ({"a": 1}, {"b": 1}, "expected a leaf output.a, got output.b"),
        ((1, 2), (1,), r"output\[1\]: missing"),
        ((1,), (1, 2), r"output\[1\]: not in the model's own output"),
        ((), None, "expected str, got NoneType"),
    ],
)
def test_a_difference_in_structure_is_named(expected: Any, got: Any, names: str) -> None:
    assert structure_difference(flatten(expected), flatten(expected)) is None
    difference = structure_difference(flatten(expected), flatten(got))
    with pytest.raises(AssertionError, match=names):
        raise AssertionError(difference)


def test_rounding_as_large_as_eagers_own_passes_and_three_times_that_fails() -> None:
    source = torch.Generator().manual_seed(0)
    truth = torch.randn(64, 64, generator=source)
    noise = torch.randn(64, 64, generator=source) * 0.1
    eager = (truth + noise).bfloat16()
    assert _judge(eager, (truth - noise).bfloat16(), truth).check.passed
    failed = _judge(eager, (truth + 3 * noise).bfloat16(), truth)
    assert not failed.check.passed
    assert "2x eager's own" in str(failed.reason)


def test_a_more_accurate_kernel_passes_however_far_from_eager() -> None:
    truth = torch.linspace(-1, 1, 100)
    assert _judge((truth * 1.2).half(), truth.half(), truth).check.passed


def test_one_wrong_value_among_many_fails_although_the_norm_hides_it() -> None:
    truth = torch.linspace(1, 2, 100_000)
    eager = truth.bfloat16()
    swapped = eager.clone()
    swapped[17] += 0.125
    judged = _judge(eager, swapped, truth)
    assert judged.check.error < 2 * judged.check.eager_error + torch.finfo(torch.bfloat16).eps
    assert not judged.check.passed
    assert "1 of 100000 values" in str(judged.reason)


def test_bitwise_equality_passes_even_where_eager_is_wrong() -> None:
    eager = torch.full((4,), 5.0)
    judged = _judge(eager, eager.clone(), torch.zeros(4))
    assert judged.check.passed
    assert judged.bitwise


def test_integers_must_be_equal() -> None:
    tokens = torch.arange(10)
    assert _judge(tokens, tokens.clone()).check.passed
    assert not _judge(tokens, tokens.roll(1)).check.passed


def test_nan_must_stand_exactly_where_eager_has_it() -> None:
    eager = torch.tensor([float("nan"), 1.0, 2.0])
    assert _judge(eager, eager.clone(), eager).check.passed
    assert _judge(eager, torch.tensor([float("nan"), float("nan"), 2.0])).reason == "1 new NaN where eager is finite"
    assert _judge(eager, torch.tensor([0.0, 1.0, 2.0])).reason == "1 values that are NaN in eager are not NaN"


def test_infinities_keep_their_place_and_sign() -> None:
    eager = torch.tensor([float("-inf"), 1.0])
    assert _judge(eager, eager.clone()).check.passed
    assert not _judge(eager, torch.tensor([float("inf"), 1.0])).check.passed
    assert not _judge(eager, torch.tensor([-1e9, 1.0])).check.passed


def test_without_a_wider_run_a_few_units_in_the_last_place_are_allowed_and_no_more() -> None:
    eager = torch.linspace(1, 2, 1000)
    eps = torch.finfo(torch.float32).eps
    assert _judge(eager, eager * (1 + 8 * eps)).check.passed
    assert not _judge(eager, eager * (1 + 1000 * eps)).check.passed


def test_agreement_counts_equal_predictions_and_is_zero_nats_for_equal_logits() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0], [3.0, 0.0, 1.0], [0.0, 1.0, 2.0], [float("nan")] * 3])
    same = agreement(Leaf("logits", logits), Leaf("logits", logits.clone()), logits)
    assert (same.kl, same.eager_kl, same.top1) == (0.0, 0.0, 1.0)
    other = logits.clone()
    other[0] = torch.tensor([2.0, 1.0, 0.0])
    half = agreement(Leaf("logits", logits), Leaf("logits", other), None)
    assert half.top1 == pytest.approx(2 / 3)
    assert half.kl > 0.01
