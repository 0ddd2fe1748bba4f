"""Emitted Triton kernels compute what the region computes in float64; here in Triton's interpreter, in a child."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from loop_regions import DTYPES, REGIONS, Region, assert_close, exact, several
from torch import Tensor
from torch.nn import functional

from hotswap.optimizer.codegen.lower import lower
from hotswap.optimizer.codegen.triton import TritonKnobs, around, emit, knob_space
from hotswap.optimizer.codegen.triton_interpreter import Interpreter, Misbehaved

reducing = pytest.mark.parametrize(
    "region",
    [r for r in REGIONS if r.name in ("rms_norm", "residual_layer_norm", "masked_softmax", "cross_entropy")],
    ids=lambda r: r.name,
)
# Rows of more than 8 columns go through a loop; 45 columns start at odd places, so that they are peeled.
LOOP = TritonKnobs(whole=8, step=16, split=0)
SPLIT = TritonKnobs(whole=8, step=16, split=8)
FORMS = {
    "loop": TritonKnobs(whole=8, step=32, split=0, peel=False),
    "peeled": LOOP,
    "split": SPLIT,
    "persistent": TritonKnobs(whole=8, step=16, split=0, persistent=1, evict=True),
}
IN_REGISTERS = {
    "once": TritonKnobs(),
    "persistent": TritonKnobs(ahead=False, persistent=1),
    "packed": TritonKnobs(packed=True),
    "packed, persistent": TritonKnobs(packed=True, persistent=1, ahead=False, early=True, registers=32),
}


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    child = Interpreter()
    yield child
    child.close()


@pytest.fixture(scope="module")
def run(interpreter: Interpreter) -> Runner:
    return Runner(interpreter)


class Runner:
    """Traces at a size no test uses, emits, and runs in the interpreter."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._sources: dict[object, str] = {}

    def __call__(
        self, region: Region, inputs: tuple[Tensor, ...], dtype: torch.dtype, knobs: TritonKnobs | None = None
    ) -> tuple[Tensor, ...]:
        key = (region.name, dtype, knobs)
        if key not in self._sources:
            program = lower(region.reference, region.inputs(6, 24, dtype))
            self._sources[key] = emit(program, knobs or TritonKnobs())
        return self._interpreter.run(self._sources[key], inputs)

    def function(
        self,
        reference: object,
        traced: tuple[Tensor, ...],
        inputs: tuple[Tensor, ...],
        knobs: TritonKnobs | None = None,
    ) -> tuple[Tensor, ...]:
        program = lower(reference, traced)  # type: ignore[arg-type]
        return self._interpreter.run(emit(program, knobs or TritonKnobs()), inputs)


def awkward(x: Tensor) -> Tensor:
    """Return the same numbers at an offset, every other column of a transposed block."""
    room = torch.zeros(2 * x.shape[-1] + 1, *x.shape[:-1], dtype=x.dtype)
    view = room[1::2].movedim(0, -1)
    view.copy_(x)
    return view


def compare(run: Runner, region: Region, dtype: torch.dtype, inputs: tuple[Tensor, ...], knobs: TritonKnobs) -> None:
    columns = inputs[0].shape[-1]
    for got, want in zip(run(region, inputs, dtype, knobs), exact(region.reference, inputs), strict=True):
        assert_close(got, want, columns)


@pytest.mark.parametrize(
    ("region", "dtype"),
    [(r, DTYPES[0]) for r in REGIONS] + [(r, DTYPES[1]) for r in REGIONS[::3]],
    ids=lambda v: v.name if isinstance(v, Region) else str(v),
)
def test_a_region_is_computed_as_float64_would_at_sizes_it_was_not_traced_at(
    run: Runner, region: Region, dtype: torch.dtype
) -> None:
    for rows, columns in [(1, 1), (3, 7), (2, 385)]:
        inputs = region.inputs(rows, columns, dtype)
        eager = several(region.reference(*inputs))
        for got, want, other in zip(run(region, inputs, dtype), exact(region.reference, inputs), eager, strict=True):
            assert_close(got, want, columns)
            assert (got.dtype, got.stride()) == (other.dtype, other.stride())


@reducing
@pytest.mark.parametrize("form", FORMS)
def test_wide_rows_in_a_loop_compute_the_same(run: Runner, region: Region, form: str) -> None:
    for columns in (45, 64):  # 64 fill all tiles, which then have no masks
        compare(run, region, torch.bfloat16, region.inputs(2, columns, torch.bfloat16), FORMS[form])


@reducing
@pytest.mark.parametrize("columns", [385, 392, 1280])
@pytest.mark.parametrize("knobs", IN_REGISTERS.values(), ids=IN_REGISTERS)
def test_a_row_in_two_tiles_computes_the_same(run: Runner, region: Region, columns: int, knobs: TritonKnobs) -> None:
    compare(run, region, torch.bfloat16, region.inputs(3, columns, torch.bfloat16), knobs)


def test_what_all_rows_share_is_read_before_the_first_of_them() -> None:
    region = next(r for r in REGIONS if r.name == "rms_norm")
    program = lower(region.reference, region.inputs(6, 24, torch.bfloat16))

    def text(*, ahead: bool) -> str:
        return emit(program, TritonKnobs(ahead=ahead, persistent=4)).partition("def _loop")[0]

    def weight_comes_first(source: str) -> bool:
        return source.index("tl.load(x1") < source.index("for task in")

    assert weight_comes_first(text(ahead=True))
    assert not weight_comes_first(text(ahead=False))


@pytest.mark.parametrize("region", REGIONS, ids=lambda r: r.name)
def test_a_row_that_is_held_as_it_was_loaded_computes_the_same(run: Runner, region: Region) -> None:
    compare(run, region, torch.bfloat16, region.inputs(3, 45, torch.bfloat16), TritonKnobs(packed=True))


def test_behind_a_reduction_a_packed_row_is_widened_again_from_what_was_loaded() -> None:
    region = next(r for r in REGIONS if r.name == "rms_norm")
    program = lower(region.reference, region.inputs(6, 24, torch.bfloat16))

    def behind_the_sum(knobs: TritonKnobs) -> str:
        return emit(program, knobs).partition("def _loop")[0].partition("tl.sum")[2]

    assert "unknown(h1, HIDE)" in behind_the_sum(TritonKnobs(packed=True))
    assert "tl.load(x1" in behind_the_sum(TritonKnobs(packed=True, ahead=False))  # the weight, which all rows share
    assert "tl.load(x1" not in behind_the_sum(TritonKnobs(packed=True))
    assert "unknown" not in behind_the_sum(TritonKnobs())


@pytest.mark.parametrize("region", REGIONS[1::2], ids=lambda r: r.name)
def test_strides_and_offsets_change_nothing(run: Runner, region: Region) -> None:
    inputs = tuple(map(awkward, region.inputs(2, 13, torch.bfloat16)))
    compare(run, region, torch.bfloat16, inputs, TritonKnobs())


@reducing
@pytest.mark.parametrize("knobs", [TritonKnobs(), LOOP, SPLIT], ids=["whole", "loop", "split"])
def test_nan_and_infinity_end_where_they_end_in_float64(run: Runner, region: Region, knobs: TritonKnobs) -> None:
    inputs = region.inputs(4, 35, torch.float32)
    first = next(x for x in inputs if x.is_floating_point())
    rows = first.view(-1, first.shape[-1])
    for row, value in zip(rows, (math.nan, math.inf, -math.inf), strict=False):
        row[row.shape[0] // 3] = value
    rows[3] = -math.inf
    compare(run, region, torch.float32, inputs, knobs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["layer_norm", "log_softmax", "tanh_gelu", "embedding"])
def test_other_floats_are_computed_as_wide_as_they_deserve(run: Runner, name: str, dtype: torch.dtype) -> None:
    region = next(r for r in REGIONS if r.name == name)
    for knobs in (TritonKnobs(), LOOP):
        compare(run, region, dtype, region.inputs(2, 29, dtype), knobs)


@pytest.mark.parametrize("knobs", [TritonKnobs(), LOOP], ids=["whole", "loop"])
def test_extremes_of_a_row_with_a_nan_anywhere_are_nan(run: Runner, knobs: TritonKnobs) -> None:
    def extremes(x: Tensor) -> tuple[Tensor, ...]:
        return x.amax(-1), x.amin(-1), x.relu(), x.clamp(-0.5, 0.5)

    x = torch.randn(20, 20).fill_diagonal_(math.nan)
    for got, want in zip(run.function(extremes, (torch.randn(3, 4),), (x,), knobs), extremes(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


TALL = [
    TritonKnobs(tile=256, tall=16), TritonKnobs(tile=256, tall=16, split=0),
    TritonKnobs(tile=2048, tall=64, each=64, split=16, early=True),
]  # fmt: skip


@pytest.mark.parametrize("knobs", TALL, ids=str)
def test_reductions_over_the_first_dimension(run: Runner, knobs: TritonKnobs) -> None:
    def down(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(0), torch.softmax(x, 0).sum(0), x.amax(0)

    x = torch.randn(130, 33)
    for got, want in zip(run.function(down, (torch.randn(4, 6),), (x,), knobs), exact(down, (x,)), strict=True):
        assert_close(got, want, 130)


def test_the_sums_of_programs_that_share_a_row_are_the_same_every_time(run: Runner) -> None:
    region = next(r for r in REGIONS if r.name == "logsumexp")
    inputs = region.inputs(1, 200, torch.float32)
    first, second = (run(region, inputs, torch.float32, SPLIT)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert_close(first, exact(region.reference, inputs)[0], 200)  # seven programs: no power of two


@pytest.mark.parametrize("knobs", [LOOP, SPLIT], ids=["loop", "split"])
def test_a_maximum_that_is_infinite_for_a_while_or_for_good_poisons_nothing(run: Runner, knobs: TritonKnobs) -> None:
    region = next(r for r in REGIONS if r.name == "logsumexp")
    x = torch.randn(1, 5, 67)
    x[0, 0, :40] = -math.inf
    x[0, 1, 30:] = -math.inf
    x[0, 2] = -math.inf
    x[0, 3, 20] = math.inf
    x[0, 4] *= 1e4
    compare(run, region, torch.float32, (x,), knobs)


@pytest.mark.parametrize("region", REGIONS[::4], ids=lambda r: r.name)
def test_no_rows_give_no_rows(run: Runner, region: Region) -> None:
    inputs = region.inputs(0, 7, torch.float32)
    want = several(region.reference(*inputs))
    assert [x.shape for x in run(region, inputs, torch.float32)] == [x.shape for x in want]


def test_a_sum_over_no_columns_is_zero_and_its_mean_is_nan(run: Runner) -> None:
    total, mean = run.function(lambda x: (x.sum(-1), x.mean(-1)), (torch.randn(3, 4),), (torch.randn(3, 0),))
    assert torch.equal(total, torch.zeros(3))
    assert mean.isnan().all()


@pytest.mark.parametrize("bad", [11, -1])
def test_an_index_out_of_range_reads_nan_and_never_memory(run: Runner, bad: int) -> None:
    region = next(r for r in REGIONS if r.name == "embedding")
    ids, table = region.inputs(4, 16, torch.float32)
    ids[1, 2] = bad
    (got,) = run(region, (ids, table), torch.float32)
    assert got[1, 2].isnan().all()
    assert got.isnan().sum() == 16


def test_another_dtype_is_refused_and_not_reinterpreted(run: Runner) -> None:
    with pytest.raises(Misbehaved, match=r"expected torch\.float32 of rank 3"):
        run(REGIONS[0], (torch.randn(2, 3, 8).half(), torch.randn(8)), torch.float32)


def test_integers_and_booleans_are_computed_as_such(run: Runner) -> None:
    def mixed(a: Tensor, b: Tensor, keep: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.where(keep, a * 3 - b, -a),
            (a > b) & ~keep,
            a.sum(-1),
            keep.any(-1),
            keep.all(-1),
            torch.div(a, b, rounding_mode="floor"),
            a % b,
            a.amax(-1),
        )

    def draw(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        a = torch.randint(-99, 99, (rows, columns))
        b = torch.randint(1, 9, (rows, columns), dtype=torch.int32) * (torch.randint(0, 2, (rows, columns)) * 2 - 1)
        return a, b.to(torch.int32), torch.rand(rows, columns) > 0.5

    inputs = draw(5, 33)
    for knobs in (TritonKnobs(), LOOP):
        for got, want in zip(run.function(mixed, draw(2, 8), inputs, knobs), mixed(*inputs), strict=True):
            assert got.dtype == want.dtype
            assert torch.equal(got, want)


def test_functions_of_the_device_library_are_close_everywhere(run: Runner) -> None:
    def functions(x: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.tanh(x), torch.expm1(x), torch.log1p(x.abs()), torch.round(x), torch.trunc(x), torch.erf(x),
            torch.sigmoid(x), x.abs() ** 1.3, functional.gelu(x), functional.gelu(x, approximate="tanh"),
        )  # fmt: skip

    x = torch.cat([torch.linspace(-9, 9, 301), torch.logspace(-6, 0, 40), -torch.logspace(-6, 0, 40)])
    for got, want in zip(run.function(functions, (torch.randn(5),), (x,)), exact(functions, (x,)), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=5e-7)


def test_heads_are_split_permuted_and_put_together_again(run: Runner) -> None:
    def heads(x: Tensor) -> tuple[Tensor, Tensor]:
        split = x.view(x.shape[0], x.shape[1], -1, 4).transpose(1, 2)
        return split.contiguous(), (split * 2).transpose(1, 2).reshape(x.shape)

    x = torch.randn(3, 5, 20)
    for got, want in zip(run.function(heads, (torch.randn(2, 6, 12),), (x,)), heads(x), strict=True):
        assert torch.equal(got, want)


def test_every_setting_differs_in_code_and_those_that_are_no_first_guess_in_one_knob_from_the_best() -> None:
    region = next(r for r in REGIONS if r.name == "rms_norm")
    program = lower(region.reference, region.inputs(6, 24, torch.bfloat16))
    sources = [emit(program, knobs) for knobs in knob_space(program)]
    assert len(set(sources)) == len(sources)
    here = TritonKnobs(each=8)
    assert knob_space(program)[0] == TritonKnobs()
    near = [knobs for knobs in around(program, here) if knobs not in knob_space(program)]
    assert near
    for knobs in near:
        assert len(set(knobs.as_dict().items()) - set(here.as_dict().items())) == 1


def test_a_pointwise_region_has_no_knobs_of_reductions() -> None:
    program = lower(functional.gelu, (torch.randn(2, 8),))
    assert len({(k.whole, k.step, k.stages, k.split, k.tall, k.peel) for k in knob_space(program)}) == 1


BFLOAT16 = """
import torch, triton, triton.language as tl

@triton.jit
def add(x, y, z, s, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    both = tl.load(x + lane) + tl.load(y + lane)
    tl.store(z + lane, both)
    tl.store(s, tl.sum(both, axis=0))

def kernel(x, y):
    z, s = torch.empty_like(x), torch.empty(1, dtype=x.dtype)
    add[(1,)](x, y, z, s, SIZE=64)
    return z, s
"""


def test_bfloat16_is_added_as_numbers_and_rounded_to_the_nearest(interpreter: Interpreter) -> None:
    x, y = torch.randn(64).bfloat16(), torch.randn(64).bfloat16()
    z, s = interpreter.run(BFLOAT16, (x, y))
    assert torch.equal(z, x + y)
    torch.testing.assert_close(s[0].float(), z.float().sum(), rtol=0.01, atol=0.01)


def test_a_candidate_that_kills_the_interpreter_is_reported_and_the_next_one_runs(interpreter: Interpreter) -> None:
    with pytest.raises(Misbehaved, match="ended with status -11"):
        interpreter.run("import os, signal\ndef kernel(x):\n    os.kill(os.getpid(), signal.SIGSEGV)", (torch.ones(2),))
    with pytest.raises(Misbehaved, match="ZeroDivisionError"):
        interpreter.run("def kernel(x):\n    return 1 // 0", (torch.ones(2),))
    assert torch.equal(interpreter.run("def kernel(x):\n    return x + 1", (torch.ones(2),))[0], torch.full((2,), 2.0))
