"""Candidates are compiled for a GPU that is not there, and what does not fit it is told apart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from loop_regions import REGIONS

from hotswap.optimizer.codegen.lower import lower
from hotswap.optimizer.codegen.triton import TritonKnobs, emit
from hotswap.optimizer.codegen.triton_compile import Build, Compiled, Compilers, Target, Tensor

TARGET = Target(90, 132, 232448)
TALL = TritonKnobs(each=64, tile=8192, stages=1, split=16)


@pytest.fixture(scope="module")
def compilers() -> Iterator[Compilers]:
    made = Compilers(1)
    yield made
    made.close()


def dense(*shape: int, dtype: str = "bfloat16") -> Tensor:
    return Tensor(dtype, shape, tuple(torch.empty(shape, device="meta").stride()))


def built(compilers: Compilers, region: str, *inputs: Tensor, knobs: TritonKnobs | None = None) -> Build:
    found = next(r for r in REGIONS if r.name == region)
    program = lower(found.reference, found.inputs(6, 24, torch.bfloat16))
    (build,) = compilers.builds([emit(program, knobs or TritonKnobs())], [inputs], TARGET)
    return build


@pytest.mark.parametrize(
    ("region", "inputs", "kernels"),
    [
        ("rms_norm", (dense(2, 2048, 4096), dense(4096)), ["_tile"]),
        ("layer_norm", (dense(1, 4096, 5120), dense(5120), dense(5120)), ["_fit"]),
        ("layer_norm", (dense(1, 32768, 768), dense(768), dense(768)), ["_fit"]),
        ("swiglu", (dense(2, 2048, 4096), dense(2, 2048, 4096)), ["_tile"]),
        ("log_softmax", (dense(2, 2048, 50257),), ["_peel"]),
        ("logsumexp", (dense(2, 1, 1000000),), ["_split0", "_split1"]),
        ("cross_entropy", (dense(4096, 32000), dense(4096, dtype="int64")), ["_loop"]),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_region_compiles_for_its_shapes_without_spills(
    compilers: Compilers, region: str, inputs: tuple[Tensor, ...], kernels: list[str]
) -> None:
    build = built(compilers, region, *inputs)
    assert build.trouble(TARGET) is None
    assert [k.name for k in build.kernels] == kernels
    assert all(16 <= k.registers <= 128 and k.stack == 0 for k in build.kernels)


def test_a_row_in_two_tiles_exchanges_no_more_than_a_row_in_one(compilers: Compilers) -> None:
    wide, narrow = (
        built(compilers, "layer_norm", dense(1, 4096, n), dense(n), dense(n), knobs=TritonKnobs(each=32)).kernels[0]
        for n in (5120, 768)
    )
    assert (wide.warps, wide.shared) == (4, 4 * 4)  # a float32 for each warp
    assert (narrow.warps, narrow.shared) == (1, 0)


def test_too_much_in_too_few_registers_is_told(compilers: Compilers) -> None:
    build = built(compilers, "log_softmax", dense(1, 4096, 65536), knobs=TritonKnobs(whole=65536, each=64))
    assert "bytes of registers spilled" in (build.trouble(TARGET) or "")


def test_more_shared_memory_or_registers_than_there_are_is_told() -> None:
    assert Compiled("k", 32, 0, 232449, 4).trouble(TARGET) == "k: 232449 bytes of shared memory, 232448 are there"
    assert Compiled("k", 128, 0, 0, 32).trouble(TARGET) == "k: 128 registers for each of 1024 threads"
    assert Compiled("k", 64, 0, 232448, 32).trouble(TARGET) is None


def test_what_does_not_compile_is_told_and_the_next_one_compiles(compilers: Compilers) -> None:
    source = """
import torch, triton, triton.language as tl

@triton.jit
def odd(x):
    tl.store(x + tl.arange(0, 3), 1.0)

def kernel(x):
    odd[(1,)](x)
    return x
"""
    bad, dead = compilers.builds([source, "import os\nos._exit(3)"], [[dense(8)]], TARGET)
    assert "power of 2" in (bad.trouble(TARGET) or "")
    assert dead.trouble(TARGET) == "compiling: the process ended with status 3"
    assert built(compilers, "gelu", dense(2, 8, 4096)).trouble(TARGET) is None


def test_a_new_length_of_the_same_kind_is_not_another_kernel(compilers: Compilers) -> None:
    region = next(r for r in REGIONS if r.name == "rms_norm")
    source = emit(lower(region.reference, region.inputs(6, 24, torch.bfloat16)), TritonKnobs())
    cases = [[dense(2, length, 4096), dense(4096)] for length in (2048, 2047, 1999, 4096)]
    (build,) = compilers.builds([source], cases, TARGET)
    assert len(build.kernels) == 1


def test_settings_that_lead_to_the_same_launches_are_told_to_be_the_same(compilers: Compilers) -> None:
    inputs = (dense(2, 2048, 4096), dense(4096))
    usual, unused, other = (
        built(compilers, "rms_norm", *inputs, knobs=knobs)
        for knobs in (TritonKnobs(), TritonKnobs(step=2048), TritonKnobs(each=8))
    )
    assert usual.launches == unused.launches
    assert usual.launches != other.launches


def test_a_row_held_as_it_was_loaded_leaves_room_for_more_programs(compilers: Compilers) -> None:
    inputs = (dense(4, 2048, 8192), dense(8192))
    (usual,), (packed,) = (
        built(compilers, "rms_norm", *inputs, knobs=knobs).kernels
        for knobs in (TritonKnobs(ahead=False), TritonKnobs(ahead=False, packed=True))
    )
    assert packed.registers < usual.registers
    assert packed.stack == 0


def test_no_more_registers_are_used_than_a_knob_allows(compilers: Compilers) -> None:
    inputs = (dense(4, 2048, 8192), dense(8192))
    (kernel,) = built(compilers, "rms_norm", *inputs, knobs=TritonKnobs(registers=32)).kernels
    assert kernel.registers <= 32


def test_a_sum_down_the_rows_keeps_one_value_for_what_a_thread_reads_at_a_time(compilers: Compilers) -> None:
    source = emit(lower(lambda x: x.sum(0), (torch.empty(6, 24, dtype=torch.bfloat16),)), TALL)
    (build,) = compilers.builds([source], [[dense(8192, 8192)]], TARGET)
    assert [k.name for k in build.kernels] == ["_split0", "_split1"]
    assert build.kernels[0].registers < 96  # a tile is 64 values a thread: summed one by one they alone take as many
    assert build.trouble(TARGET) is None


def test_a_device_that_cannot_launch_early_gets_the_kernel_that_does_not(compilers: Compilers) -> None:
    region = next(r for r in REGIONS if r.name == "rms_norm")
    program = lower(region.reference, region.inputs(6, 24, torch.bfloat16))
    sources = [emit(program, TritonKnobs(early=early)) for early in (True, False)]
    inputs = [[dense(2, 2048, 4096), dense(4096)]]
    new, old = (compilers.builds(sources, inputs, Target(capability)) for capability in (90, 80))
    assert all(build.trouble(TARGET) is None for build in (*new, *old))
    assert old[0].launches == old[1].launches
    assert new[0].launches != new[1].launches
