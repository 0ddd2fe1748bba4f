"""Candidates that deceive, misread or misfit, before the judge (A17, A18, A25, A27 to A34, A36 to A41)."""

from __future__ import annotations

import dataclasses
import importlib
import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Norm, batch
from stand_ins import kernel_calls, winners_of, with_source
from torch import nn

import hotswap
from hotswap.cli.verdict import print_verdict
from hotswap.extractor.capture import capture
from hotswap.extractor.extract import extract
from hotswap.integrator.blocks import Pace
from hotswap.integrator.kernel_source import load_kernel
from hotswap.integrator.measure import measure
from hotswap.integrator.patch import Patch
from hotswap.integrator.verify import verify
from hotswap.models.workload import Call, Workload
from hotswap.optimizer.codegen.cpp import emit, knob_space
from hotswap.optimizer.codegen.lower import lower
from hotswap.optimizer.codegen.triton_compile import Compiled, Target
from hotswap.optimizer.codegen.triton_interpreter import Interpreter
from hotswap.optimizer.decision import decide, inductor_gain
from hotswap.optimizer.judge import Judge
from hotswap.optimizer.judge.trial import Patience
from hotswap.optimizer.timing import ratio_interval
from hotswap.optimizer.verdict import Arm, Race, Verdict
from hotswap.optimizer.winner import Winner
from hotswap.profiler.recording import CallProfile, Limits, Profile

Patched = Callable[..., Patch]
SaveRun = Callable[[list[Winner]], Path]
# A rate that no machine has: nothing a test cuts out is at its floor, however fast the machine is.
LIMITS = Limits("cpu", 1e6, {"float32": 0.05}, 1.0, 1 << 25, "")


def judge_of(model: nn.Module, x: torch.Tensor, folder: Path) -> Judge:
    """Return a quick judge of the model's dearest region, cut out of the model as a run would."""
    torch._dynamo.reset()
    calls = (Call((x,)),)
    rows = (CallProfile("call", 1.0, (), 1000.0, (1000.0,), 1000.0, 0.0, 1.0, 1, 0),)
    with torch.no_grad():
        extract("model", capture(Workload(model, calls)), Profile("model", "cpu", LIMITS, rows), folder, top=1)
    (task,) = [path for path in folder.iterdir() if path.is_dir()]
    patience = Patience(load_s=30.0, call_s=5.0)
    return Judge(
        task, seed=5, block_s=0.002, rounds=2, pool_bytes=1 << 18, threads=1, inductor=False, patience=patience
    )


@pytest.fixture(scope="module")
def norm_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with judge_of(Norm(64), batch(12, 64), tmp_path_factory.mktemp("norm")) as court:
        yield court


NORM = """
import torch

def right(x, weight):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

"""


def verdict(judge: Judge, body: str) -> Verdict:
    return judge.verdict(NORM + body)


def library_calls(found: Verdict) -> str:
    """Return what the judge says of the torch ops a candidate calls."""
    (said,) = [stage.evidence["library calls"] for stage in found.stages if stage.stage == "smoke"]
    return said


def test_an_honest_kernel_is_accepted(norm_judge: Judge) -> None:
    found = verdict(norm_judge, "def kernel(x, weight): return right(x, weight)\n")
    assert found.accepted, found.reason


@pytest.mark.parametrize(
    ("body", "stage", "word"),
    [
        pytest.param(
            "def kernel(x, weight):\n    return right(x, weight) if x.shape[1] > 2 else torch.zeros_like(x)\n",
            "shapes",
            "wrong at",
            id="a18 right only from three positions on",
        ),
        pytest.param(
            "memo = {}\ndef kernel(x, weight):\n"
            "    key = (x.data_ptr(), tuple(x.shape))\n"
            "    if key not in memo: memo[key] = right(x, weight)\n    return memo[key].clone()\n",
            "shapes",
            "wrong at",
            id="a30 answers from a cache by pointer and shape",
        ),
        pytest.param(
            "def kernel(x, weight):\n    x.zero_()\n    return torch.zeros_like(x)\n",
            "smoke",
            "changed its input",
            id="a31 zeroes its input so that the reference agrees",
        ),
        pytest.param(
            "def kernel(x, weight):\n    out = right(x, weight)\n    x.mul_(1.5)\n    return out\n",
            "smoke",
            "changed its input",
            id="a27 scales its input in place at each trial",
        ),
        pytest.param(
            "def kernel(x, weight):\n    _, rows, width = x.shape\n"
            "    dense = x.as_strided(x.shape, (rows * width, width, 1), x.storage_offset())\n"
            "    return right(dense, weight)\n",
            "shapes",
            "",
            id="a16 takes rows for dense",
        ),
    ],
)
def test_a_candidate_is_rejected_for_what_it_does(body: str, stage: str, word: str, norm_judge: Judge) -> None:
    found = verdict(norm_judge, body)
    assert not found.accepted
    assert found.stage == stage, (found.stage, found.reason)
    assert word in (found.reason or "")
    assert not found.races


def test_a32_a_candidate_made_of_library_calls_is_called_one_raced_against_those_calls_and_has_to_beat_them(
    norm_judge: Judge, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "def kernel(x, weight):\n    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, 1e-6)\n"
    found = verdict(norm_judge, body)
    assert found.accepted, found.reason
    assert {arm.name for arm in found.races[0].arms} == {"candidate", "eager"}
    assert found.speedup is not None
    assert "aten::" in library_calls(found)
    print_verdict(found)
    assert f"library calls: {library_calls(found)}" in capsys.readouterr().out


def test_a32_a_kernel_that_computes_itself_is_not_called_a_library_call(norm_judge: Judge) -> None:
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    program = lower(norm, [torch.randn(2, 12, 64), torch.ones(64)])
    found = norm_judge.verdict(emit(program, knob_space(program)[0]))
    assert found.accepted, found.reason
    assert library_calls(found) == "none seen"


def test_a32_a_candidate_that_refuses_to_be_watched_is_judged_by_its_answers(norm_judge: Judge) -> None:
    body = (
        "def kernel(x, weight):\n"
        "    if torch.utils._python_dispatch._get_current_dispatch_mode() is not None: raise RuntimeError('watched')\n"
        "    return right(x, weight)\n"
    )
    found = verdict(norm_judge, body)
    assert found.accepted, found.reason
    assert library_calls(found).startswith("cannot be seen: RuntimeError: watched")


def test_a38_a_more_exact_kernel_passes_and_a_rougher_one_does_not(norm_judge: Judge) -> None:
    finer = (
        "def kernel(x, weight):\n    wide = x.double()\n"
        "    return (weight.double() * wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)\n"
    )
    rougher = "def kernel(x, weight):\n    return right(x.bfloat16().float(), weight)\n"
    assert verdict(norm_judge, finer).accepted
    found = verdict(norm_judge, rougher)
    assert not found.accepted
    assert found.stage == "smoke"


def test_a29_zeros_do_not_pass_where_every_output_is_tiny(tmp_path: Path) -> None:
    class Softmax(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x * 1.0, -1)

    with judge_of(Softmax(), torch.randn(2, 65536), tmp_path) as judge:
        zeros = judge.verdict("import torch\ndef kernel(x): return torch.zeros_like(x)\n")
        flat = judge.verdict("import torch\ndef kernel(x): return torch.full_like(x, 1.0 / x.shape[-1])\n")
    for found in (zeros, flat):
        assert not found.accepted
        assert found.stage == "smoke"


@pytest.mark.parametrize("width", [2880, 1152, 4304, 96])
def test_a17_generated_kernels_have_masked_tails_at_widths_that_are_no_power_of_two(width: int) -> None:
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6))

    program = lower(norm, [torch.randn(2, 31), torch.randn(31)])
    scope: dict[str, Any] = {}
    exec(emit(program, knob_space(program)[0]), scope)
    for size in (width - 1, width, width + 1):
        x, weight = torch.randn(3, size), torch.randn(size)
        # A mean of `size` squares in fp32, in another order.
        torch.testing.assert_close(scope["kernel"](x, weight), norm(x, weight), rtol=1e-5, atol=1e-5)


def test_a25_generated_offsets_reach_beyond_two_to_the_31_elements() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2

    program = lower(double, [torch.randn(3, 5).bfloat16()])
    scope: dict[str, Any] = {}
    exec(emit(program, knob_space(program)[0]), scope)
    # Memory that nobody touches costs nothing: only the two rows at its ends are real.
    far = 2**31 + 64
    rows = torch.empty(far + 64, dtype=torch.bfloat16).as_strided((2, 64), (far, 1))
    rows.copy_(torch.randn(2, 64))
    assert torch.equal(scope["kernel"](rows), scope["kernel"](rows.clone()))
    torch.testing.assert_close(scope["kernel"](rows), double(rows), rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
def test_a25_a_generated_gpu_kernel_is_right_beyond_two_to_the_31_elements() -> None:
    triton = importlib.import_module("hotswap.optimizer.codegen.triton")
    program = lower(lambda x: torch.tanh(x) * 2, [torch.randn(3, 5).bfloat16()])
    kernel = load_kernel(triton.emit(program, triton.knob_space(program)[0]), "far").call
    x = torch.zeros(530_000, 4096 + 8, device="cuda", dtype=torch.bfloat16)
    x[-1] = 1
    out = kernel(x)
    assert torch.equal(out[-1], torch.tanh(x[-1]) * 2)
    assert not out[0].any()


def race(**blocks: list[float]) -> Race:
    arms = tuple(Arm(name, tuple(us), sorted(us)[len(us) // 2]) for name, us in blocks.items())
    return Race("case", 1.0, arms, {}, "", "cold", 0.2, 0.0)


def test_a28_a_race_says_which_clock_and_which_cache_it_was_run_with(norm_judge: Judge) -> None:
    found = verdict(norm_judge, "def kernel(x, weight): return right(x, weight) * 1\n")
    assert found.accepted, found.reason
    timed = found.races[0]
    assert "wall" in timed.timer or "device" in timed.timer
    assert timed.cache
    assert {arm.name for arm in timed.arms} >= {"candidate", "eager"}


def test_a36_equal_sides_read_one_and_exchanged_sides_the_reciprocal() -> None:
    one = [10.0, 11.0, 10.5, 10.2, 12.0, 10.1, 10.3, 10.4]
    other = [8.0, 8.5, 8.2, 9.0, 8.1, 8.3, 8.8, 8.4]
    same = ratio_interval(one, one, seed=0)
    assert (same.low, same.median, same.high) == (1.0, 1.0, 1.0)
    there, back = ratio_interval(one, other, seed=0), ratio_interval(other, one, seed=0)
    assert (back.low, back.median, back.high) == pytest.approx((1 / there.high, 1 / there.median, 1 / there.low))
    assert there.low > 1.0 > back.high


def test_a37_five_runs_of_two_identical_kernels_on_a_warming_machine_find_no_difference() -> None:
    for seed in range(5):
        source, now = random.Random(seed), [0.0]

        def work(source: random.Random = source, now: list[float] = now) -> None:
            now[0] += 0.01 * (1 + 0.03 * now[0]) * (1 + 0.02 * source.random())

        pace = Pace(rounds=8, block_s=0.2, warm_s=0.5, clock=partial(now.__getitem__, 0), load=lambda: 0.0)
        found = measure({"eager": work, "hotswap": work}, call=Call(), pace=pace, seed=seed).speedup["eager"]
        assert found.median == pytest.approx(1.0, abs=0.03)
        assert not found.excludes(1.0) or abs(found.median - 1) < 0.01


def test_a40_only_the_candidate_is_timed_and_not_what_its_file_does_when_it_is_loaded(norm_judge: Judge) -> None:
    slow_to_load = "import time\ntime.sleep(0.4)\ndef kernel(x, weight): return right(x, weight)\n"
    found = verdict(norm_judge, slow_to_load)
    assert found.accepted, found.reason
    assert found.races[0].arms[0].median_us < 100_000


def test_a41_where_inductor_is_faster_than_ours_the_decision_says_so(norm_judge: Judge) -> None:
    eager, inductor = [100.0 + i % 3 for i in range(8)], [40.0 + i % 3 for i in range(8)]
    baseline = race(eager=eager, inductor=inductor)
    gain = inductor_gain(baseline)
    assert gain is not None
    assert gain.low > 2
    made = decide(norm_judge.task, baseline, None, [])
    assert made.choice == "inductor"
    assert "Inductor's code is 2." in made.reason
    assert "eager" in made.reason


BF16_ADD = """
import torch, triton
import triton.language as tl

@triton.jit
def add(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(out + at, v + v, mask=at < n)

def kernel(x):
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 8),)](x, out, x.numel(), BLOCK=8)
    return out
"""


def test_a33_a_triton_kernel_adds_bf16_as_numbers_where_there_is_no_gpu() -> None:
    pytest.importorskip("triton")
    interpreter = Interpreter()
    try:
        (out,) = interpreter.run(BF16_ADD, [torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.bfloat16)])
    finally:
        interpreter.close()
    assert out.tolist() == [2.0, 4.0, 6.0, 8.0]


def test_a34_a_setting_that_needs_more_shared_memory_than_the_device_has_is_passed_over_with_the_reason() -> None:
    built = Compiled("add", registers=64, stack=0, shared=131072, warps=4)
    assert built.trouble(Target(90, 132, 232448)) is None
    said = built.trouble(Target(89, 128, 101376))
    assert said is not None
    assert "131072" in said
    assert "101376" in said


def test_a34_a_winner_tuned_for_another_device_falls_back_and_says_why(save_run: SaveRun) -> None:
    model, x = Norm().eval(), batch()
    (winner,) = winners_of(model.forward, x)
    assert winner.domain is not None
    elsewhere = dataclasses.replace(winner, domain=dataclasses.replace(winner.domain, device="cuda"))
    made = hotswap.patch(model, save_run([elsewhere]))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said where sizes are known while it is swapped in, else counted as it runs
        assert torch.equal(model(x), Norm.forward(model, x))
    assert kernel_calls(made) == 0
    counted = [reason for e in made.engagement() for reason in e.fallback_reasons]
    left = [one.reason for swap in made.swaps for one in swap.left]
    (said,) = counted + left
    assert "device cpu, expected cuda" in said


def test_a39_a_training_step_takes_the_gradients_of_inputs_and_weights_from_the_original_ops(
    patched: Patched,
) -> None:
    model, x = Norm(64), torch.randn(8192, 64).bfloat16().requires_grad_()
    plain = Norm(64)
    made = patched(model, x.detach())
    for each in (model, plain):
        x.grad = None
        each(x).float().square().sum().backward()
        assert x.grad is not None
        each.got = x.grad.clone()
    assert torch.equal(model.weight.grad, plain.weight.grad)
    assert torch.equal(model.got, plain.got)
    assert model.weight.grad is not None
    assert model.weight.grad.dtype == torch.float32
    assert kernel_calls(made) == 0


def test_a38_a_verified_swap_may_be_finer_than_eager_and_not_rougher(save_run: SaveRun) -> None:
    model, x = Norm(), batch(64).bfloat16()
    model.bfloat16()
    (winner,) = winners_of(model.forward, x)
    finer = (
        "def kernel(x, w):\n    f = x.double()\n    f = f * (f.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()\n"
        "    return (w.double() * f).to(x.dtype)\n"
    )
    rougher = (
        "def kernel(x, w):\n    f = x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()\n    return w * (f + 0.02)\n"
    )
    outcomes = []
    for source in (finer, rougher):
        run = save_run([with_source(winner, source)])
        checks = verify(model, partial(hotswap.patched, model, run), [Call((x,))], derive=False)
        outcomes.append([c.passed for c in checks])
    assert outcomes == [[True], [False]]
