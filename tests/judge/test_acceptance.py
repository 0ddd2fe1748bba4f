"""A task is taken only if trivial answers fail it: its inputs are perturbed until they do, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hotswap.extractor.load_task import load_task
from hotswap.models.errors import InputError
from hotswap.optimizer.judge.acceptance import trivial_answer
from hotswap.optimizer.judge.bank import Bank

Make = Callable[..., Path]
SYMBOLS = (((0, 0),), ((0, 1),))


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(11))


def bank(folder: Path) -> Bank:
    return Bank(load_task(folder), seed=5)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return (x * 0,)", "zeros as the answer would pass"),
        ("return (x.clamp(0, 0) + 3.0,)", "the mean as the answer would pass"),
        ("return (torch.linspace(0, 1, x.shape[1]).expand_as(x) + 0 * x,)", "another call's output as the answer"),
        ("return (x + 0.0,)", "an input as the answer would pass"),
        ("return (x + 0.0, x * 0)", "an input and zeros as the answer would pass"),
        ("return (x < float('inf'),)", "the mean as the answer would pass"),
    ],
)
def test_a_task_that_no_input_can_prove_is_refused(body: str, why: str, make_task: Make) -> None:
    folder = make_task(
        f"import torch\ndef reference(x):\n    {body}\n", {"x": draw(4, 16)}, outputs=body.count(",") or 1
    )
    with pytest.raises(InputError, match=f"task refused: {why}.*perturbed ones too"):
        bank(folder)


def test_an_ordinary_task_is_left_as_it_is(make_task: Make) -> None:
    made = bank(make_task("def reference(x):\n    return (x.exp(),)\n", {"x": draw(4, 16)}, symbols=SYMBOLS))
    assert made.notes == []
    assert not [s.name for s in made.families if "perturbed" in s.name]


def test_one_value_is_not_its_own_mean(make_task: Make) -> None:
    loss = "import torch\ndef reference(x, y):\n    return (torch.nn.functional.cross_entropy(x, y),)\n"
    recorded = {"x": draw(8, 16), "y": torch.arange(8)}
    assert bank(make_task(loss, recorded, symbols=(((0, 0), (1, 0)),))).notes == []


def test_one_value_that_is_always_the_same_is_refused(make_task: Make) -> None:
    folder = make_task("def reference(x):\n    return (x.abs().clamp(0, 0).sum() + 3,)\n", {"x": draw(8, 16)})
    with pytest.raises(InputError, match="task refused: the mean as the answer would pass"):
        bank(folder)


def test_one_output_that_proves_nothing_does_not_refuse_the_others(make_task: Make) -> None:
    folder = make_task("def reference(x):\n    return x.exp(), x + 0.0\n", {"x": draw(4, 16)}, outputs=2)
    assert bank(folder).notes == []


@pytest.mark.parametrize(
    ("body", "recorded", "passing", "how"),
    [
        # A residual stream that was all zeros: without it the task is the identity.
        ("return (x + y,)", {"x": draw(8, 16), "y": torch.zeros(8, 16)}, "an input", "constant"),
        # A mask of floats that let everything through: nothing is left of the output.
        ("return (x * (1 - y),)", {"x": draw(8, 16), "y": torch.ones(8, 16)}, "zeros", "constant"),
        # Behind another relu: what is never negative is left as it is.
        ("return (x.relu(),)", {"x": draw(8, 16).abs()}, "an input", "both signs"),
        # Every index was the same.
        ("return (x * 3,)", {"x": torch.full((4, 16), 7)}, "the mean", "constant"),
    ],
)
def test_inputs_are_perturbed_until_trivial_answers_fail(
    body: str, recorded: dict[str, torch.Tensor], passing: str, how: str, make_task: Make
) -> None:
    made = bank(make_task(f"def reference({', '.join(recorded)}):\n    {body}\n", recorded))
    perturbed = [s for s in made.families if s.name.startswith("perturbed")]
    assert passing in made.notes[0]
    assert how in made.notes[-1]
    assert trivial_answer([s for s in made.families if s not in perturbed]) == passing
    assert trivial_answer(perturbed) is None


def test_an_input_that_changes_nothing_is_named(make_task: Make) -> None:
    reference = "def reference(x, shift):\n    return (x.exp() + 0 * shift,)\n"
    made = bank(make_task(reference, {"x": draw(4, 16), "shift": draw(4, 16)}))
    assert made.notes == ["the output is the same whatever shift holds"]


def test_candidates_are_judged_on_the_perturbed_inputs_too(make_task: Make) -> None:
    made = bank(make_task("def reference(x, y):\n    return (x + y,)\n", {"x": draw(8, 16), "y": torch.zeros(8, 16)}))
    perturbed = [s for s in made.all if s.name.startswith("perturbed")]
    assert perturbed
    assert all(bool((s.inputs[1] != 0).any()) for s in perturbed)
