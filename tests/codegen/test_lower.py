"""Lowering keeps sizes out of the program and says why a region is no loop nest."""

from __future__ import annotations

import pytest
import torch
from loop_regions import Function, layer_norm, masked_softmax, rms_norm, rotary
from torch import Tensor
from torch.nn import functional

from hotswap.optimizer.codegen.lower import Unsupported, lower
from hotswap.optimizer.codegen.program import Constant, Load, Reduce, SizeOf


def test_a_program_prints_as_what_it_does() -> None:
    text = str(lower(rms_norm, (torch.randn(2, 5, 24).bfloat16(), torch.randn(24).bfloat16())))
    assert "axis c = x0.shape[2] | x1.shape[0]" in text
    assert "v4: float32 row = sum_over_columns(v3)" in text
    assert "out[r0, r1, c]: bfloat16" in text


@pytest.mark.parametrize("reference", [rms_norm, layer_norm], ids=["rms_norm", "layer_norm"])
def test_the_number_of_columns_is_no_constant_of_the_program(reference: Function) -> None:
    inputs = (torch.randn(5, 24), *(torch.randn(24) for _ in range(1 if reference is rms_norm else 2)))
    program = lower(reference, inputs)
    assert any(isinstance(item, SizeOf) for item in program.code)
    assert not any(isinstance(item, Constant) and item.value in (24, 1 / 24) for item in program.code)
    assert all(axis.size is None for axis in program.axes)


def test_programs_traced_at_different_sizes_are_the_same_program() -> None:
    def traced(batch: int, length: int, width: int) -> str:
        scores, mask = torch.randn(batch, 3, length, width), torch.randn(batch, 1, 1, width)
        return str(lower(masked_softmax, (scores, mask)))

    assert traced(2, 5, 8) == traced(3, 9, 12)


def test_values_that_do_not_vary_along_a_row_are_computed_once_a_row() -> None:
    program = lower(layer_norm, (torch.randn(5, 24), torch.randn(24), torch.randn(24)))
    kinds = {type(item): item.kind for item in program.code if isinstance(item, Reduce)}
    assert kinds == {Reduce: "row"}
    assert [item.kind for item in program.code if isinstance(item, Load)].count("column") == 2


def test_a_rotation_of_halves_needs_no_constant_size() -> None:
    program = lower(rotary, (torch.randn(2, 3, 5, 16), torch.randn(2, 5, 16), torch.randn(2, 5, 16)))
    assert [axis.size for axis in program.axes] == [None, None, None, 2, None]
    assert program.pinned == ()


def test_equal_computations_are_one_instruction() -> None:
    program = lower(lambda x: x.exp() + x.exp(), (torch.randn(3, 4),))
    assert len(program.code) == 3


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (lambda x: x @ x, r"aten\.mm\.default: not expressible as one loop nest"),
        (lambda x: x.cumsum(-1), r"aten\.cumsum\.default: not expressible"),
        (lambda x: (x.sum(0), x.sum(1)), "reductions over 2 different axes"),
        (lambda x: x.sum(), "reductions over 2 different axes"),
        (lambda x: (x + 1, x[0] * 2), "outputs of different row shapes"),
        (lambda x: x.sum(0) + x.sum(1), "two dimensions of one tensor would have to be the same axis"),
        (lambda x: x.t(), "an output is a view of an input"),
        (lambda x: torch.ones(3), "reads no tensor"),
        (lambda x: torch.cat((x, x[:, :2]), -1), r"aten\.cat\.default: parts of different sizes"),
        (lambda x: torch.view_as_complex(x.view(6, 3, 2)).real * 1, "complex"),
        (lambda x: x[x > 0], r"aten\.index\.Tensor: more than one index tensor, or a mask"),
        (lambda x: x * x.sum().item(), r"aten\._local_scalar_dense\.default: not"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_no_loop_nest_is_said(reference: Function, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        lower(reference, (torch.randn(6, 6),))


def test_random_numbers_are_no_loop_nest() -> None:
    with pytest.raises(Unsupported, match="not expressible"):
        lower(lambda x: functional.dropout(x, 0.5, training=True), (torch.randn(3, 4),))


def test_an_input_that_would_be_written_to_is_refused() -> None:
    def grow(x: Tensor) -> Tensor:
        return x.add_(1) * 2

    with pytest.raises(Unsupported, match="copy_"):
        lower(grow, (torch.randn(3, 4),))


def test_empty_examples_are_refused() -> None:
    with pytest.raises(Unsupported, match="input 0 is empty"):
        lower(rms_norm, (torch.randn(0, 4), torch.randn(4)))
