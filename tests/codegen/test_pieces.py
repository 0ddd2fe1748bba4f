"""Rows made of pieces, as rotary embeddings make them: each element is read once and written once, without gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from loop_regions import assert_close, exact, rms_norm
from torch import Tensor

from hotswap.extractor.task import ShapeCase, Task, TensorSpec
from hotswap.optimizer.codegen.chain import lower_whole
from hotswap.optimizer.codegen.lower import Unsupported, lower
from hotswap.optimizer.codegen.program import LoopProgram
from hotswap.optimizer.codegen.triton import TritonKnobs, emit
from hotswap.optimizer.codegen.triton_compile import Compilers, Target
from hotswap.optimizer.codegen.triton_compile import Tensor as Described
from hotswap.optimizer.codegen.triton_interpreter import Interpreter
from hotswap.optimizer.codegen.unroll import unrolled
from hotswap.optimizer.proposers.template import alike

Function = Callable[..., Tensor | tuple[Tensor, ...]]


def halves(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def rotary(turn: Callable[[Tensor], Tensor]) -> Function:
    def both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return q * cos + turn(q) * sin, k * cos + turn(k) * sin

    return both


def normed_pairs(x: Tensor, w: Tensor, cos: Tensor) -> tuple[Tensor, ...]:
    h = rms_norm(x, w)
    return (h * cos + pairs(h),)


def four(x: Tensor) -> tuple[Tensor, ...]:
    a, b, c, d = (x[..., n::4] for n in range(4))
    return (torch.stack((b - a, a * c, d, b + d), dim=-1).flatten(-2),)


def three(x: Tensor) -> tuple[Tensor, ...]:
    a, b, c = x.chunk(3, dim=-1)
    return (torch.stack((b - a, c, a + b), dim=-1),)


def tensors(length: int, depth: int = 16, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, ...]:
    shapes = ((2, 3, length, depth), (2, 3, length, depth), (1, length, depth), (1, length, depth))
    return tuple(torch.randn(s).to(dtype) for s in shapes)


def rotary_program(turn: Callable[[Tensor], Tensor], depth: int = 16) -> LoopProgram:
    return lower(rotary(turn), tensors(6, depth), alike=[(0, 1)])


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    child = Interpreter()
    yield child
    child.close()


def check(interpreter: Interpreter, source: str, reference: Function, inputs: tuple[Tensor, ...]) -> None:
    for got, want in zip(interpreter.run(source, inputs), exact(reference, inputs), strict=True):
        assert_close(got, want, inputs[0].shape[-1])
        assert got.is_contiguous()


@pytest.mark.parametrize("turn", [halves, pairs])
@pytest.mark.parametrize("length", [1, 37])
def test_queries_and_keys_of_one_shape_are_turned_by_one_kernel(
    interpreter: Interpreter, turn: Callable[[Tensor], Tensor], length: int
) -> None:
    inputs = tensors(length)
    across = inputs[0].transpose(1, 2).contiguous().transpose(1, 2)  # a view of (batch, length, heads, depth)
    source = emit(rotary_program(turn), TritonKnobs(tile=64))
    check(interpreter, source, rotary(turn), inputs)
    check(interpreter, source, rotary(turn), (across, *inputs[1:]))


@pytest.mark.parametrize(("turn", "loads"), [(halves, 8), (pairs, 4)])
def test_each_element_is_read_once_and_written_once(turn: Callable[[Tensor], Tensor], loads: int) -> None:
    source = emit(rotary_program(turn), TritonKnobs())
    assert source.count("tl.load(") == loads
    assert source.count("tl.store(") == loads // 2
    assert "tl.where" not in source


@pytest.mark.parametrize("reference", [four, three])
def test_more_than_two_pieces_are_put_together(interpreter: Interpreter, reference: Function) -> None:
    source = emit(lower(reference, (torch.randn(5, 24),)), TritonKnobs())
    check(interpreter, source, reference, (torch.randn(7, 24),))


@pytest.mark.parametrize(
    "knobs", [TritonKnobs(), TritonKnobs(whole=8, step=16), TritonKnobs(whole=8, split=8)], ids=str
)
def test_a_norm_before_the_pieces_is_computed_once_for_all_of_them(
    interpreter: Interpreter, knobs: TritonKnobs
) -> None:
    def draw(rows: int) -> tuple[Tensor, ...]:
        return torch.randn(rows, 72).bfloat16(), torch.randn(72).bfloat16(), torch.randn(rows, 72).bfloat16()

    program = unrolled(lower(normed_pairs, draw(4)))
    assert sum(1 for item in program.code if getattr(item, "op", "") == "rsqrt") == 1
    check(interpreter, emit(program, knobs), normed_pairs, draw(3))


def task_of(inputs: tuple[Tensor, ...]) -> Task:
    names = ("q", "k", "cos", "sin")
    specs = tuple(
        TensorSpec(n, tuple(t.shape), t.stride(), 0, "bfloat16", "activation")
        for n, t in zip(names, inputs, strict=True)
    )
    cases = (ShapeCase("call", specs, 1, 1.0, 10.0),)
    return Task("rotary", "f", "memory", "cuda:0", (), names, 2, cases, (), 10.0, 5.0, 0.1, 1.1)


def test_inputs_that_always_have_one_shape_let_outputs_be_one_loop_nest() -> None:
    task = task_of(tensors(5))
    assert alike(task) == [(0, 1), (2, 3)]
    assert len(lower_whole(rotary(halves), tensors(5), alike(task)).outputs) == 2
    with pytest.raises(Unsupported, match="outputs of different row shapes"):
        lower_whole(rotary(halves), tensors(5))


def test_inputs_whose_sizes_vary_apart_are_not_alike() -> None:
    q, k, cos, sin = tensors(5)
    assert alike(replace(task_of((q, k, cos, sin)), size_symbols=(((0, 2), (2, 1)), ((1, 2), (3, 1))))) == []
    assert alike(task_of((q, k[:, :2], cos, sin))) == [(2, 3)]


def test_shapes_that_were_alike_and_are_no_longer_are_refused(interpreter: Interpreter) -> None:
    q, k, cos, sin = tensors(5)
    with pytest.raises(Exception, match=r"axis r1: expected one size, got \[2, 3\]"):
        interpreter.run(emit(rotary_program(halves), TritonKnobs()), (q, k[:, :2], cos, sin))


@pytest.mark.parametrize(("turn", "depth"), [(halves, 128), (pairs, 128), (halves, 80)])
def test_lanes_stay_in_their_threads(turn: Callable[[Tensor], Tensor], depth: int) -> None:
    inputs = tensors(64, depth)
    compilers = Compilers(1)
    described = [Described("bfloat16", tuple(x.shape), x.stride()) for x in inputs]
    (build,) = compilers.builds([emit(rotary_program(turn, depth), TritonKnobs())], [described], Target())
    compilers.close()
    assert build.error is None
    assert [(k.stack, k.shared) for k in build.kernels] == [(0, 0)]
