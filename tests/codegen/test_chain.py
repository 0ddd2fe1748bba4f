"""Regions that reduce twice are two programs in one candidate, in C++ and in Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from loop_regions import exact
from torch import Tensor
from torch.nn import functional

from hotswap.optimizer.codegen.chain import lower_chain
from hotswap.optimizer.codegen.language import CPP, TRITON
from hotswap.optimizer.codegen.lower import Unsupported
from hotswap.optimizer.codegen.triton_interpreter import Interpreter

Inputs = tuple[Tensor, ...]


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels)


def shifted_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits[..., :-1, :].reshape(-1, logits.shape[-1]), labels[..., 1:].reshape(-1))


def error(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return functional.mse_loss(x, y), x.sum()


def labelled(rows: int, columns: int) -> Inputs:
    labels = torch.randint(0, columns, (rows,))
    labels[rows // 2] = -100
    return torch.randn(rows, columns), labels


def two(rows: int, columns: int) -> Inputs:
    return torch.randn(2, rows, columns), torch.randn(2, rows, columns)


CASES: dict[str, tuple[Callable[..., Any], Callable[[int, int], Inputs]]] = {
    "loss": (loss, labelled),
    "error": (error, two),
    "mean": (lambda x, y: (x * y).mean(), two),
}


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    child = Interpreter()
    yield child
    child.close()


def in_cpp(source: str, inputs: Inputs) -> Inputs:
    names: dict[str, Any] = {}
    exec(compile(source, "<candidate>", "exec"), names)
    result = names["kernel"](*inputs)
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("language", [CPP, TRITON], ids=lambda v: v.name)
def test_a_reduction_of_everything_is_computed_as_float64_would(
    interpreter: Interpreter, language: Any, case: str
) -> None:
    reference, draw = CASES[case]
    chain = lower_chain(reference, draw(4, 6))
    assert len(chain.programs) == 2
    _, source = next(language.sources(chain))
    run = in_cpp if language is CPP else interpreter.run
    for rows, columns in ((5, 33), (2, 7)):
        inputs = draw(rows, columns)
        for got, want in zip(run(source, inputs), exact(reference, inputs), strict=True):
            assert got.shape == want.shape
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


def test_a_shifted_loss_is_two_programs() -> None:
    logits, labels = torch.randn(2, 4, 6), torch.randint(0, 6, (2, 4))
    assert len(lower_chain(shifted_loss, (logits, labels)).programs) == 2


def test_what_is_one_program_stays_one() -> None:
    chain = lower_chain(functional.gelu, (torch.randn(3, 5),))
    assert len(chain.programs) == 1
    assert chain.single


def test_what_is_no_two_programs_either_is_refused_for_the_reason_of_the_whole() -> None:
    with pytest.raises(Unsupported, match=r"aten\.mm"):
        lower_chain(lambda x: (x @ x.t()).sum(), (torch.randn(3, 5),))
