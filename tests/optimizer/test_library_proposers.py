"""Candidates for anchors: a packed linear."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from hotswap.extractor.load_task import LoadedTask
from hotswap.extractor.task import Role, ShapeCase, Task, TensorSpec
from hotswap.optimizer.candidate import Candidate
from hotswap.optimizer.proposers.packed_linear import PackedLinear


def task_of(tensors: dict[str, torch.Tensor], weights: tuple[str, ...] = ()) -> Task:
    def role(name: str) -> Role:
        return "weight" if name in weights else "activation"

    specs = tuple(
        TensorSpec(n, tuple(t.shape), t.stride(), 0, str(t.dtype).removeprefix("torch."), role(n))
        for n, t in tensors.items()
    )
    case = ShapeCase("s0", specs, 1, 1.0, 100.0)
    return Task("t", "f" * 16, "anchor", "cpu", (), tuple(tensors), 1, (case,), (), 100.0, 50.0, 0.5, 1.3)


def kernel_of(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(source, "candidate", "exec"), names)
    return names


def loaded(task: Task, reference: Callable[..., tuple[torch.Tensor, ...]]) -> LoadedTask:
    return LoadedTask(Path("nowhere"), task, reference, "", {})


def packed_linear(
    given: dict[str, torch.Tensor], reference: Callable[..., tuple[torch.Tensor, ...]]
) -> Candidate | None:
    task = task_of(given, ("weight", "bias"))
    return PackedLinear(loaded(task, reference)).propose(task, [])


@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_linear_computes_the_linear(bias: bool) -> None:
    torch.manual_seed(0)
    given = {"x": torch.randn(3, 7, 48), "weight": torch.randn(20, 48)}
    given |= {"bias": torch.randn(20)} if bias else {}
    candidate = packed_linear(given, lambda *inputs: (F.linear(*inputs),))
    assert candidate is not None
    names = kernel_of(candidate.source)
    packed = names["prepare"](*given.values())
    torch.testing.assert_close(names["kernel"](*given.values(), packed=packed), F.linear(*given.values()))
    assert names["STATIC_WEIGHTS"] is True
    assert names["LABEL"] == "library call"


def test_a_matrix_that_is_no_weight_of_the_model_is_never_packed() -> None:
    task = task_of({"x": torch.randn(4, 8), "y": torch.randn(8, 8)})
    assert PackedLinear(loaded(task, lambda x, y: (F.linear(x, y),))).propose(task, []) is None


ACTIVATIONS = [
    F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.relu, F.silu, torch.sigmoid, torch.tanh,
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_after_a_packed_linear_is_given_to_the_library(activation: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    given = {"x": torch.randn(3, 7, 48), "weight": torch.randn(20, 48), "bias": torch.randn(20)}
    candidate = packed_linear(given, lambda *inputs: (activation(F.linear(*inputs)),))
    assert candidate is not None
    names = kernel_of(candidate.source)
    out = names["kernel"](*given.values(), packed=names["prepare"](*given.values()))
    torch.testing.assert_close(out, activation(F.linear(*given.values())))


def test_what_the_library_has_no_activation_for_is_not_offered_as_one() -> None:
    given = {"x": torch.randn(3, 7, 48), "weight": torch.randn(20, 48)}
    assert packed_linear(given, lambda x, w: (F.linear(x, w).sin(),)) is None
    assert packed_linear(given, lambda x, w: (F.gelu(F.linear(x, w)) * 2,)) is None
