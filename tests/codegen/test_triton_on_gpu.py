"""Emitted Triton kernels on the GPU, at widths that meet every form: whole rows, loops, peeled, shared."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_regions import DTYPES, REGIONS, Region, assert_close, exact, several
from torch import Tensor

from hotswap.optimizer.codegen.lower import lower
from hotswap.optimizer.codegen.triton import TritonKnobs, emit

pytestmark = pytest.mark.gpu

SIZES = [(1, 1), (3, 7), (300, 768), (5, 2047), (17, 20000), (3, 50257)]
NARROW = [(1, 1), (3, 7), (40, 64), (5, 385)]
IN_FEW_REGISTERS = [TritonKnobs(packed=True), TritonKnobs(packed=True, ahead=False, early=True, registers=64)]


def built(folder: Path, reference: Any, traced: tuple[Tensor, ...], knobs: TritonKnobs | None = None) -> Any:
    path = folder / f"candidate_{len(list(folder.iterdir()))}.py"
    path.write_text(emit(lower(reference, traced), knobs or TritonKnobs()), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel: Callable[..., Any] = module.kernel
    return kernel


def on_gpu(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.cuda() for x in inputs)


@pytest.mark.parametrize("region", REGIONS, ids=lambda r: r.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_region_is_computed_as_float64_would(tmp_path: Path, region: Region, dtype: torch.dtype) -> None:
    kernel = built(tmp_path, region.reference, region.inputs(6, 24, dtype))
    for rows, columns in NARROW if "rotary" in region.name else SIZES:
        inputs = region.inputs(rows, columns, dtype)
        for got, want in zip(several(kernel(*on_gpu(inputs))), exact(region.reference, inputs), strict=True):
            assert_close(got.cpu(), want, columns)


@pytest.mark.parametrize("region", REGIONS, ids=lambda r: r.name)
@pytest.mark.parametrize("knobs", IN_FEW_REGISTERS, ids=["packed", "packed, limited"])
def test_a_row_held_as_it_was_loaded_is_computed_as_float64_would(
    tmp_path: Path, region: Region, knobs: TritonKnobs
) -> None:
    kernel = built(tmp_path, region.reference, region.inputs(6, 24, torch.bfloat16), knobs)
    for rows, columns in NARROW if "rotary" in region.name else SIZES[:4]:
        inputs = region.inputs(rows, columns, torch.bfloat16)
        for got, want in zip(several(kernel(*on_gpu(inputs))), exact(region.reference, inputs), strict=True):
            assert_close(got.cpu(), want, columns)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["layer_norm", "log_softmax"])
def test_other_floats_are_computed_as_wide_as_they_deserve(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    region = next(r for r in REGIONS if r.name == name)
    kernel, inputs = built(tmp_path, region.reference, region.inputs(6, 24, dtype)), region.inputs(5, 777, dtype)
    assert_close(several(kernel(*on_gpu(inputs)))[0].cpu(), exact(region.reference, inputs)[0], 777)


@pytest.mark.parametrize("knobs", [TritonKnobs(), TritonKnobs(each=64, tile=8192, stages=1, split=16, early=True)])
@pytest.mark.parametrize("shape", [(16384, 512), (1000, 77), (3, 4096), (1, 1)], ids=str)
def test_sums_and_softmax_over_the_first_dimension(tmp_path: Path, shape: tuple[int, int], knobs: TritonKnobs) -> None:
    def down(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(0), torch.softmax(x, 0), x.amax(0)

    x = torch.randn(shape)
    kernel = built(tmp_path, down, (torch.randn(4, 6),), knobs)
    for got, want in zip(kernel(x.cuda()), exact(down, (x,)), strict=True):
        assert_close(got.cpu(), want, shape[0])


def test_results_are_the_same_bits_every_time(tmp_path: Path) -> None:
    x = torch.randn(2, 700001, device="cuda")
    kernel = built(tmp_path, lambda x: (x.sum(-1), torch.softmax(x, -1)), (torch.randn(4, 6),))
    first, second = kernel(x), kernel(x)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("captured", [True, False])
def test_kernels_launched_early_wait_for_what_they_read(tmp_path: Path, captured: bool) -> None:
    early, late = (
        built(tmp_path, lambda x: x - x.sum(-1, keepdim=True) * 1e-3, (torch.randn(4, 6),), TritonKnobs(early=e))
        for e in (True, False)
    )

    def many(kernel: Any, x: Tensor) -> Tensor:
        for _ in range(100):
            x = kernel(x.T)  # a row of one call is made of all rows of the call before
        return x

    x = torch.randn(2048, 2048, device="cuda")
    wanted = many(late, x)
    got = many(early, x)
    if captured:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = many(early, x)
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(got, wanted)


def test_offsets_beyond_32_bits_reach_the_right_places(tmp_path: Path) -> None:
    kernel = built(tmp_path, lambda x: x + 1, (torch.zeros(4, 6, dtype=torch.int8),))
    x = torch.zeros(3, 2**30, dtype=torch.int8, device="cuda")
    x[2, -5:] = 7
    got = kernel(x)
    assert got[2, -6:].tolist() == [1, 8, 8, 8, 8, 8]
    assert int(got[:, ::4097].sum()) == 3 * got[0, ::4097].numel()


def test_a_kernel_can_be_captured_and_follows_the_stream(tmp_path: Path) -> None:
    region = REGIONS[0]
    kernel = built(tmp_path, region.reference, region.inputs(6, 24, torch.bfloat16))
    x, w = on_gpu(region.inputs(64, 512, torch.bfloat16))
    kernel(x, w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernel(x, w)
    x.mul_(3).add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, kernel(x, w))
