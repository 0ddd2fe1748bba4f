"""The judge on a CUDA device: honest Triton kernels pass, and what only a device makes possible is caught."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from conftest import rmsnorm

from hotswap.optimizer.judge import Judge
from hotswap.optimizer.judge.trial import Patience

pytestmark = pytest.mark.gpu

HONEST = """
import torch
import triton
import triton.language as tl


@triton.jit
def norm(x, weight, out, width, row, column, EPS: tl.constexpr, BLOCK: tl.constexpr):
    here = tl.arange(0, BLOCK)
    inside = here < width
    start = tl.program_id(0).to(tl.int64)
    value = tl.load(x + start * row + here * column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + EPS)
    gain = tl.load(weight + here, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + start * width + here, (value * scale * gain).to(out.dtype.element_ty), mask=inside)


def kernel(x, weight):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, width = x.shape
    if out.numel():
        block = triton.next_power_of_2(width)
        norm[(rows,)](x, weight.contiguous(), out, width, x.stride(0), x.stride(1), EPS=1e-6, BLOCK=block)
    return out
"""

ROWS, WIDTH = 256, 1024


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    folder = rmsnorm(tmp_path_factory.mktemp("gpu") / "rmsnorm", torch.bfloat16, ROWS, WIDTH, "cuda")
    patience = Patience(load_s=60.0, call_s=20.0)
    with Judge(folder, seed=5, block_s=0.01, rounds=3, pool_bytes=64 << 20, patience=patience) as court:
        yield court


def changed(old: str, new: str) -> str:
    assert HONEST.count(old) == 1
    return HONEST.replace(old, new)


def test_an_honest_triton_kernel_is_accepted_and_timed_in_cuda_graphs_against_eager_and_inductor(court: Judge) -> None:
    verdict = court.verdict(HONEST)
    assert verdict.accepted, verdict.reason
    (race,) = verdict.races
    assert {arm.name for arm in race.arms} == {"candidate", "eager", "inductor"}
    assert "CUDA graph" in race.timer
    assert "not captured" not in verdict.stages[-1].evidence
    assert "namespaces" in verdict.isolation


def test_a_kernel_that_waits_for_the_device_is_accepted_and_said_to_be_uncapturable(court: Judge) -> None:
    verdict = court.verdict(changed("    return out", "    torch.cuda.synchronize()\n    return out"))
    assert verdict.accepted, verdict.reason
    assert "candidate:" in verdict.stages[-1].evidence["not captured"]


CHEATS = {
    "leaves the last row as it found it": (changed("norm[(rows,)]", "norm[(max(rows - 1, 1),)]"), "smoke"),
    "no mask for the tail": (changed("inside = here < width", "inside = here < BLOCK"), None),
    "zeros": (changed("(value * scale * gain)", "(value * 0)"), "smoke"),
    "one static buffer": (
        changed(
            "    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)",
            "    out = HELD.setdefault(x.shape, torch.empty(x.shape, dtype=x.dtype, device=x.device))",
        )
        + "\nHELD = {}\n",
        None,
    ),
    "memo by pointer": (
        HONEST
        + """
SEEN = {}
honest = kernel


def kernel(x, weight):
    key = (x.data_ptr(), weight.data_ptr(), x.shape)
    if key not in SEEN:
        SEEN[key] = honest(x, weight)
    return SEEN[key].clone()
""",
        None,
    ),
    "does nothing once captured": (
        HONEST
        + """
honest = kernel


def kernel(x, weight):
    if torch.cuda.is_current_stream_capturing():
        return torch.empty_like(x)
    return honest(x, weight)
""",
        "timing",
    ),
    "copies an old answer once captured": (
        HONEST
        + """
honest = kernel
OLD = {}


def kernel(x, weight):
    if torch.cuda.is_current_stream_capturing():
        return OLD[x.data_ptr() % 1].clone()
    OLD[0] = honest(x, weight)
    return OLD[0]
""",
        "timing",
    ),
    "works on another stream that nobody waits for": (
        HONEST
        + """
honest = kernel
SIDE = torch.cuda.Stream()
BUSY = torch.empty(1 << 28, device="cuda")


def kernel(x, weight):
    with torch.cuda.stream(SIDE):
        BUSY.fill_(1.0)
        return honest(x, weight)
""",
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_on_the_device_is_rejected(court: Judge, name: str) -> None:
    source, stage = CHEATS[name]
    verdict = court.verdict(source)
    assert not verdict.accepted
    assert stage is None or verdict.stage == stage, (verdict.stage, verdict.reason)


def test_after_an_illegal_access_the_next_candidate_is_judged_normally(court: Judge) -> None:
    wild = changed("tl.store(out + start * width", "tl.store(out + (start + (1 << 40)) * width")
    assert not court.verdict(wild).accepted
    verdict = court.verdict(HONEST)
    assert verdict.accepted, verdict.reason
