"""Emitted C++ kernels compute what the region computes in float64, at any size, stride and value."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from loop_regions import DTYPES, REGIONS, Kernels, Region, assert_close, exact, layer_norm, several
from torch import Tensor
from torch.nn import functional

from hotswap.optimizer.codegen.cpp import CppKnobs, emit, knob_space, neighbours
from hotswap.optimizer.codegen.lower import lower
from hotswap.optimizer.native import cache_folder

SIZES = [(1, 1), (3, 7), (5, 77), (2, 385), (4, 512)]
everywhere = pytest.mark.parametrize("region", REGIONS, ids=lambda r: r.name)
in_both = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def awkward(x: Tensor) -> Tensor:
    """Return the same numbers at an offset, every other column of a transposed block."""
    room = torch.zeros(2 * x.shape[-1] + 1, *x.shape[:-1], dtype=x.dtype)
    view = room[1::2].movedim(0, -1)
    view.copy_(x)
    return view


@everywhere
@in_both
def test_a_region_is_computed_as_float64_would_at_sizes_it_was_not_traced_at(
    kernels: Kernels, region: Region, dtype: torch.dtype
) -> None:
    kernel = kernels.of(region, dtype)
    for rows, columns in SIZES:
        inputs = region.inputs(rows, columns, dtype)
        for got, want, eager in zip(
            several(kernel(*inputs)), exact(region.reference, inputs), several(region.reference(*inputs)), strict=True
        ):
            assert_close(got, want, columns)
            assert (got.dtype, got.stride()) == (eager.dtype, eager.stride())


@everywhere
@in_both
def test_strides_and_offsets_change_nothing(kernels: Kernels, region: Region, dtype: torch.dtype) -> None:
    kernel, inputs = kernels.of(region, dtype), region.inputs(5, 77, dtype)
    for got, want in zip(several(kernel(*map(awkward, inputs))), exact(region.reference, inputs), strict=True):
        assert_close(got, want, 77)


@everywhere
def test_nan_and_infinity_end_where_they_end_in_float64(kernels: Kernels, region: Region) -> None:
    inputs = region.inputs(8, 40, torch.float32)
    first = next(x for x in inputs if x.is_floating_point())
    rows = first.view(-1, first.shape[-1])
    for row, value in zip(rows, (math.nan, math.inf, -math.inf), strict=False):
        row[row.shape[0] // 3] = value
    for got, want in zip(
        several(kernels.of(region, torch.float32)(*inputs)), exact(region.reference, inputs), strict=True
    ):
        assert_close(got, want, 40)


def test_extremes_of_a_row_with_a_nan_anywhere_are_nan(kernels: Kernels) -> None:
    def extremes(x: Tensor) -> tuple[Tensor, ...]:
        return x.amax(-1), x.amin(-1), x.relu(), x.clamp(-0.5, 0.5)

    kernel = kernels.build(extremes, (torch.randn(3, 4),))
    x = torch.randn(50, 50).fill_diagonal_(math.nan)
    for got, want in zip(kernel(x), extremes(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@everywhere
def test_no_rows_give_no_rows(kernels: Kernels, region: Region) -> None:
    inputs = region.inputs(0, 7, torch.float32)
    got, want = several(kernels.of(region, torch.float32)(*inputs)), several(region.reference(*inputs))
    assert [x.shape for x in got] == [x.shape for x in want]


def test_a_sum_over_no_columns_is_zero_and_its_mean_is_nan(kernels: Kernels) -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(-1), x.mean(-1)

    total, mean = several(kernels.build(both, (torch.randn(3, 4),))(torch.randn(3, 0)))
    assert torch.equal(total, torch.zeros(3))
    assert mean.isnan().all()


def test_rows_expanded_from_one_are_read_as_one(kernels: Kernels) -> None:
    region = REGIONS[0]
    x, w = region.inputs(1, 77, torch.float32)
    (got,) = several(kernels.of(region, torch.float32)(x[:1].expand(4, 1, 77), w))
    assert torch.equal(got, several(kernels.of(region, torch.float32)(x[:1].repeat(4, 1, 1), w))[0])


def test_a_size_that_broadcasts_only_at_run_time_broadcasts(kernels: Kernels) -> None:
    kernel = kernels.of(next(r for r in REGIONS if r.name == "swiglu"), torch.float32)
    gate, up = torch.randn(4, 5, 9), torch.randn(1, 5, 1)
    assert_close(several(kernel(gate, up))[0], (functional.silu(gate.double()) * up).double(), 9)


def test_sizes_that_do_not_fit_each_other_are_refused(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="expected one size, got"):
        kernels.of(REGIONS[0], torch.float32)(torch.randn(2, 3, 8), torch.randn(9))


def test_another_dtype_is_refused_and_not_reinterpreted(kernels: Kernels) -> None:
    with pytest.raises(TypeError, match=r"expected torch\.float32 of rank 3"):
        kernels.of(REGIONS[0], torch.float32)(torch.randn(2, 3, 8).half(), torch.randn(8))


@pytest.mark.parametrize("bad", [11, -1])
def test_an_index_out_of_range_is_an_index_error(kernels: Kernels, bad: int) -> None:
    region = next(r for r in REGIONS if r.name == "embedding_norm")
    ids, *rest = region.inputs(4, 16, torch.float32)
    ids[1, 2] = bad
    with pytest.raises(IndexError, match="out of range"):
        kernels.of(region, torch.float32)(ids, *rest)


def test_one_build_serves_every_size(kernels: Kernels) -> None:
    kernel = kernels.of(REGIONS[0], torch.float32)
    before = sorted(cache_folder().iterdir())
    for rows, columns in SIZES:
        kernel(*REGIONS[0].inputs(rows, columns, torch.float32))
    assert sorted(cache_folder().iterdir()) == before


@pytest.mark.parametrize("name", ["residual_layer_norm", "gelu"])
def test_every_setting_of_the_knobs_computes_the_same(kernels: Kernels, name: str) -> None:
    region = next(r for r in REGIONS if r.name == name)
    inputs = region.inputs(3, 77, torch.bfloat16)
    settings = knob_space(lower(region.reference, inputs))
    assert 3 <= len(settings) <= 12
    assert settings[0] == CppKnobs()
    for knobs in settings:
        (got,) = several(kernels.of(region, torch.bfloat16, knobs)(*inputs))
        assert_close(got, exact(region.reference, inputs)[0], 77)


def test_neighbours_differ_in_one_knob() -> None:
    program = lower(functional.gelu, (torch.randn(2, 8),))
    here = CppKnobs(width=256)
    for knobs in neighbours(program, here):
        assert len(set(knobs.as_dict().items()) - set(here.as_dict().items())) == 1


def test_work_split_over_threads_gives_the_same(kernels: Kernels) -> None:
    region = REGIONS[0]
    inputs = region.inputs(301, 129, torch.float32)
    kernel = kernels.of(region, torch.float32, CppKnobs(grain=512))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = several(kernel(*inputs))[0]
        torch.set_num_threads(2)
        assert torch.equal(several(kernel(*inputs))[0], alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_other_floats_are_computed_as_wide_as_they_deserve(kernels: Kernels, dtype: torch.dtype) -> None:
    region = next(r for r in REGIONS if r.name == "layer_norm")
    inputs = region.inputs(5, 77, dtype)
    assert_close(several(kernels.of(region, dtype)(*inputs))[0], exact(region.reference, inputs)[0], 77)


def test_integers_and_booleans_are_computed_as_such(kernels: Kernels) -> None:
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

    kernel = kernels.build(mixed, draw(2, 8))
    for inputs in (draw(5, 33), draw(1, 1)):
        for got, want in zip(kernel(*inputs), mixed(*inputs), strict=True):
            assert got.dtype == want.dtype
            assert torch.equal(got, want)


def test_norms_of_torch_itself_are_computed(kernels: Kernels) -> None:
    def norms(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        width = (x.shape[-1],)
        return (
            functional.rms_norm(x, width, w, 1e-6),
            functional.normalize(x, dim=-1),
            torch.linalg.vector_norm(x, 1, dim=-1),
            torch.linalg.vector_norm(x, math.inf, dim=-1),
        )

    kernel = kernels.build(norms, (torch.randn(4, 6), torch.randn(6)))
    inputs = torch.randn(5, 33), torch.randn(33)
    for got, want in zip(kernel(*inputs), exact(norms, inputs), strict=True):
        assert_close(got, want, 33)


def test_heads_are_split_permuted_and_put_together_again(kernels: Kernels) -> None:
    def heads(x: Tensor) -> tuple[Tensor, Tensor]:
        split = x.view(x.shape[0], x.shape[1], -1, 4).transpose(1, 2)
        return split.contiguous(), (split * 2).transpose(1, 2).reshape(x.shape)

    kernel = kernels.build(heads, (torch.randn(2, 6, 12),))
    for shape in ((3, 5, 20), (1, 1, 4)):
        x = torch.randn(shape)
        for got, want in zip(kernel(x), heads(x), strict=True):
            assert torch.equal(got, want)


def test_a_causal_mask_made_from_positions_follows_the_size(kernels: Kernels) -> None:
    def causal(scores: Tensor) -> Tensor:
        at = torch.arange(scores.shape[-1])
        return scores.masked_fill(at[None, :] > at[:, None], -1.0)

    kernel = kernels.build(causal, (torch.randn(2, 6, 6),))
    x = torch.randn(3, 9, 9)
    assert torch.equal(several(kernel(x))[0], causal(x))


def test_a_square_is_added_to_its_transpose_and_not_to_its_diagonal(kernels: Kernels) -> None:
    kernel = kernels.build(lambda x: x + x.t(), (torch.randn(6, 6),))
    x = torch.randn(9, 9)
    assert torch.equal(several(kernel(x))[0], x + x.t())
    with pytest.raises(ValueError, match="expected one size"):
        kernel(torch.randn(9, 8))


def test_a_slice_from_the_middle_holds_only_at_the_size_it_was_traced_at(kernels: Kernels) -> None:
    kernel = kernels.build(lambda x: x[:, 3:] * 2, (torch.randn(2, 10),))
    x = torch.randn(5, 10)
    assert torch.equal(several(kernel(x))[0], x[:, 3:] * 2)
    with pytest.raises(ValueError, match="expected 10"):
        kernel(torch.randn(5, 12))


def test_subnormal_results_are_kept_and_masked_ones_are_exactly_zero(kernels: Kernels) -> None:
    region = next(r for r in REGIONS if r.name == "masked_softmax")
    scores, mask = torch.zeros(1, 1, 4), torch.tensor([0.0, -95.0, -200.0, -math.inf]).view(1, 1, 4)
    (got,) = several(kernels.of(region, torch.float32)(scores, mask))
    assert 0 < got[0, 0, 1] < torch.finfo(torch.float32).tiny
    assert torch.equal(got[0, 0, 2:], torch.zeros(2))


def test_inner_loops_use_the_widest_vectors_of_the_cpu(tmp_path: Path) -> None:
    import re
    import subprocess

    from hotswap.optimizer.native import DEFAULT_FLAGS

    if "avx512f" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("needs a CPU with 512-bit vectors")
    text = emit(lower(layer_norm, (torch.randn(2, 8).bfloat16(), *(torch.randn(8).bfloat16(),) * 2)), CppKnobs())
    source = re.search(r'SOURCE = r"""(.*?)"""', text, re.DOTALL)
    assert source is not None
    (tmp_path / "kernel.cpp").write_text(source[1])
    flags = [f for f in DEFAULT_FLAGS if f != "-shared"]
    command = ["g++", *flags, "-mprefer-vector-width=512", "-S", "-o", "-", str(tmp_path / "kernel.cpp")]
    assembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    # Widen bf16, sum squares, put bf16 back together.
    for instruction in ("vpmovzxwd", "vfmadd", "vpsrld"):
        assert re.search(rf"{instruction}\w*\t.*%zmm", assembly), f"no 512-bit {instruction}"
