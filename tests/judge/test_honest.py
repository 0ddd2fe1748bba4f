"""No honest kernel is rejected, whatever its style and dtype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hotswap.optimizer.judge import Judge

HONEST = """
import torch

def right(x, weight):
    wide = x.to(torch.float32)
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
"""

HONEST_KERNELS: dict[str, str] = {
    "plain composition": HONEST + 'LABEL = "composition"\ndef kernel(x, weight): return right(x, weight)\n',
    "returns a tuple": HONEST + "def kernel(x, weight): return (right(x, weight),)\n",
    "library call": """
import torch.nn.functional as F
LABEL = "library call"
def kernel(x, weight):
    wide = F.rms_norm(x.float(), (x.shape[-1],), None, 1e-6)
    return weight * wide.to(x.dtype)
""",
    "more accurate than the reference": """
import torch
def kernel(x, weight):
    wide = x.double()
    return (weight.double() * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
""",
    "rounds once at the store": """
import torch
def kernel(x, weight):
    wide = x.float()
    return (weight.float() * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6))).to(x.dtype)
""",
    "sums in another order": """
import torch
def kernel(x, weight):
    wide = x.float()
    squares = wide.square().cumsum(-1)[..., -1:] if x.shape[-1] else wide
    return (weight.float() * wide * torch.rsqrt(squares / x.shape[-1] + 1e-6)).to(x.dtype)
""",
    "scratch it owns, in place": """
import torch
scratch = {}
def kernel(x, weight):
    room = scratch.setdefault(tuple(x.shape), torch.empty(x.shape))
    room.copy_(x).square_()
    factor = room.mean(-1, keepdim=True).add_(1e-6).rsqrt_()
    room.copy_(x).mul_(factor)
    return (room.to(x.dtype) * weight)
""",
    "packs its weights through prepare": """
import torch
STATIC_WEIGHTS = True
def prepare(x, weight):
    return weight.float().clone()
def kernel(x, weight, *, packed):
    wide = x.float()
    return (packed * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6))).to(x.dtype)
""",
    "dense inputs only, as declared": HONEST
    + """
CONSTRAINTS = {"contiguous": ["x"]}
def kernel(x, weight):
    return right(x.view(-1).view(x.shape), weight)
""",
    "keyword defaults and names of its own": HONEST
    + "def kernel(hidden, scale, eps=1e-6): return right(hidden, scale)\n",
    "threads of its own": HONEST
    + """
from concurrent.futures import ThreadPoolExecutor
def kernel(x, weight):
    half = x.shape[0] // 2
    with ThreadPoolExecutor(2) as pool:
        return torch.cat(list(pool.map(lambda part: right(part, weight), (x[:half], x[half:]))))
""",
    "C++": r'''
import ctypes
import torch
from hotswap.optimizer.native import compile_cpp
CONSTRAINTS = {"contiguous": ["x", "weight"]}
lib = compile_cpp(r"""
#include <cmath>
#include <cstdint>
#include <cstring>
static float up(const float v) { return v; }
static float up(const uint16_t v) { uint32_t w = uint32_t(v) << 16; float f; std::memcpy(&f, &w, 4); return f; }
static void down(float f, float* o) { *o = f; }
static void down(float f, uint16_t* o) {
    uint32_t w; std::memcpy(&w, &f, 4);
    *o = std::isnan(f) ? 0x7fc0 : uint16_t((w + 0x7fff + ((w >> 16) & 1)) >> 16);
}
template <class T> static void norm(const T* x, const T* w, T* out, int64_t rows, int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; ++r) {
        float sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += up(x[r * n + i]) * up(x[r * n + i]);
        float f = 1.0f / std::sqrt(sum / n + 1e-6f);
        for (int64_t i = 0; i < n; ++i) down(up(x[r * n + i]) * f * up(w[i]), out + r * n + i);
    }
}
extern "C" void f32(const float* x, const float* w, float* o, int64_t r, int64_t n) { norm(x, w, o, r, n); }
extern "C" void bf16(const uint16_t* x, const uint16_t* w, uint16_t* o, int64_t r, int64_t n) { norm(x, w, o, r, n); }
""")
calls = {torch.float32: lib.f32, torch.bfloat16: lib.bf16}
for call in calls.values():
    call.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2
def kernel(x, weight):
    out = torch.empty_like(x)
    calls[x.dtype](x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1])
    return out
''',
    "several launches over scratch of its own": """
import torch
def squares(x, room): torch.mul(x, x, out=room)
def factors(room, out): torch.rsqrt(room.mean(-1, keepdim=True) + 1e-6, out=out)
def kernel(x, weight):
    wide = x.float()
    room, factor = torch.empty(x.shape), torch.empty(*x.shape[:-1], 1)
    squares(wide, room)
    factors(room, factor)
    return (wide * factor * weight.float()).to(x.dtype)
""",
    "autotuned on its first call of a shape": HONEST
    + """
import time
def by_rows(x, weight): return torch.cat([right(r, weight) for r in x.split(8)]) if x.shape[0] else right(x, weight)
chosen = {}
def timed(run, x, weight):
    started = time.perf_counter()
    run(x, weight)
    return time.perf_counter() - started
def kernel(x, weight):
    key = (tuple(x.shape), x.stride())
    if key not in chosen:
        chosen[key] = min((right, by_rows), key=lambda run: timed(run, x, weight))
    return chosen[key](x, weight)
""",
    "a loop over rows": HONEST
    + """
def kernel(x, weight):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for i in range(x.shape[0]): out[i] = right(x[i], weight)
    return out
""",
    "blocks of rows into one output": HONEST
    + """
def kernel(x, weight):
    out = torch.empty(x.shape, dtype=x.dtype)
    for start in range(0, x.shape[0], 7): out[start : start + 7] = right(x[start : start + 7], weight)
    return out
""",
    "sums by a matmul": """
import torch
def kernel(x, weight):
    wide = x.float()
    total = wide.square() @ torch.ones(x.shape[-1], 1)
    return (wide * torch.rsqrt(total / x.shape[-1] + 1e-6) * weight.float()).to(x.dtype)
""",
    "sums by einsum": """
import torch
def kernel(x, weight):
    wide = x.float()
    total = torch.einsum("rk,rk->r", wide, wide)[:, None]
    return (wide * torch.rsqrt(total / x.shape[-1] + 1e-6) * weight.float()).to(x.dtype)
""",
    "a vector norm": """
import torch
def kernel(x, weight):
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return (wide * torch.rsqrt(norm.square() / x.shape[-1] + 1e-6) * weight.float()).to(x.dtype)
""",
    "a power and a division": """
import torch
def kernel(x, weight):
    wide = x.float()
    return (weight.float() * (wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).pow(0.5))).to(x.dtype)
""",
    "sums in double, multiplies in single": """
import torch
def kernel(x, weight):
    wide = x.float()
    factor = torch.rsqrt(wide.double().square().mean(-1, keepdim=True) + 1e-6).float()
    return (wide * factor * weight.float()).to(x.dtype)
""",
    "pads to a power of two": """
import torch
def kernel(x, weight):
    n = x.shape[-1]
    padded = torch.nn.functional.pad(x.float(), (0, (1 << max(n - 1, 0).bit_length()) - n))
    factor = torch.rsqrt(padded.square().sum(-1, keepdim=True) / n + 1e-6)
    return (padded * factor)[:, :n].mul(weight.float()).to(x.dtype)
""",
    "works on the transpose": """
import torch
def kernel(x, weight):
    turned = x.float().t().contiguous()
    factor = torch.rsqrt(turned.square().mean(0, keepdim=True) + 1e-6)
    return (turned * factor * weight.float()[:, None]).t().contiguous().to(x.dtype)
""",
    "through numpy": """
import numpy as np
import torch
def kernel(x, weight):
    wide, scale = x.float().numpy(), weight.float().numpy()
    factor = 1 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + np.float32(1e-6))
    return torch.from_numpy((wide * factor * scale).astype(np.float32)).to(x.dtype)
""",
    "plans kept by shape": HONEST
    + """
import functools
@functools.lru_cache
def plan(rows, width): return [slice(i, min(i + 5, rows)) for i in range(0, rows, 5)]
def kernel(x, weight):
    parts = [right(x[part], weight) for part in plan(*x.shape)]
    return torch.cat(parts) if parts else right(x, weight)
""",
    "an object with a call": HONEST
    + """
class Norm:
    def __init__(self, eps): self.eps, self.calls = eps, 0
    def __call__(self, x, weight):
        self.calls += 1
        return right(x, weight)
norm = Norm(1e-6)
def kernel(x, weight): return norm(x, weight)
""",
    "a list of one": HONEST + "def kernel(x, weight): return [right(x, weight)]\n",
    "two halves of a row": """
import torch
def kernel(x, weight):
    wide, half = x.float(), x.shape[-1] // 2
    total = wide[:, :half].square().sum(-1) + wide[:, half:].square().sum(-1)
    return (wide * torch.rsqrt(total / x.shape[-1] + 1e-6)[:, None] * weight.float()).to(x.dtype)
""",
    "scales by the largest value first": """
import torch
def kernel(x, weight):
    wide = x.float()
    peak = wide.abs().amax(-1, keepdim=True) if x.shape[-1] else wide.sum(-1, keepdim=True)
    peak = torch.where((peak > 0) & peak.isfinite(), peak, 1.0)
    factor = torch.rsqrt((wide / peak).square().mean(-1, keepdim=True) + 1e-6 / peak / peak) / peak
    return (wide * factor * weight.float()).to(x.dtype)
""",
}


# In the interpreter: see the fixture of the hall.
TRITON = """
import torch
import triton
import triton.language as tl
CONSTRAINTS = {"contiguous": ["x", "weight"]}
"""
TRITON_KERNELS: dict[str, str] = {
    "Triton, a program a row": TRITON
    + """
@triton.jit
def norm(x, w, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, at < n, 0.0).to(tl.float32)
    f = 1 / tl.sqrt(tl.sum(v * v) / n + 1e-6)
    tl.store(out + row * n + at, v * f * tl.load(w + at, at < n, 0.0).to(tl.float32), at < n)
def kernel(x, weight):
    out = torch.empty_like(x)
    if x.numel(): norm[(x.shape[0],)](x, weight, out, x.shape[1], triton.next_power_of_2(x.shape[1]))
    return out
""",
    "Triton, two launches and scratch": TRITON
    + """
@triton.jit
def factors(x, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, at < n, 0.0).to(tl.float32)
    tl.store(out + row, 1 / tl.sqrt(tl.sum(v * v) / n + 1e-6))
@triton.jit
def scale(x, w, f, out, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, at < n, 0.0).to(tl.float32) * tl.load(f + row)
    tl.store(out + row * n + at, v * tl.load(w + at, at < n, 0.0).to(tl.float32), at < n)
def kernel(x, weight):
    out, room, block = torch.empty_like(x), torch.empty(x.shape[0]), triton.next_power_of_2(max(x.shape[1], 1))
    if x.numel():
        factors[(x.shape[0],)](x, room, x.shape[1], block)
        scale[(x.shape[0],)](x, weight, room, out, x.shape[1], block)
    return out
""",
    "Triton, several rows a program": TRITON
    + """
@triton.jit
def norm(x, w, out, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (at < n)
    v = tl.load(x + row * n + at, inside, 0.0).to(tl.float32)
    f = 1 / tl.sqrt(tl.sum(v * v, 1) / n + 1e-6)
    tl.store(out + row * n + at, v * f[:, None] * tl.load(w + at, at < n, 0.0).to(tl.float32), inside)
def kernel(x, weight):
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.shape[0], 8),)
    if x.numel(): norm[grid](x, weight, out, *x.shape, 8, triton.next_power_of_2(x.shape[1]))
    return out
""",
}
INTEGERS = """
    def reference(x, mask):
        return x * 3 + 1, (x > 4) & mask
"""
INTEGER_KERNELS: dict[str, str] = {
    "integers and booleans": "def kernel(x, mask): return x * 3 + 1, (x > 4) & mask\n",
    "integers by shifts": "def kernel(x, mask): return (x << 1) + x + 1, (x > 4).logical_and(mask)\n",
    "integers in place": (
        "def kernel(x, mask):\n    out = x.clone()\n    out *= 3\n    out += 1\n    flag = x > 4\n"
        "    flag &= mask\n    return out, flag\n"
    ),
}
# Enough of them in the other dtypes to see that no bound is fitted to two.
EVERYWHERE = (
    "plain composition", "more accurate than the reference", "sums in another order", "scratch it owns, in place",
    "packs its weights through prepare", "several launches over scratch of its own", "two halves of a row",
)  # fmt: skip


def test_there_are_enough_of_them() -> None:
    assert len(HONEST_KERNELS) + len(TRITON_KERNELS) + len(INTEGER_KERNELS) >= 30


@pytest.mark.parametrize("name", HONEST_KERNELS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_honest_kernel_is_accepted(name: str, dtype: str, judge32: Judge, judge16: Judge) -> None:
    verdict = (judge32 if dtype == "fp32" else judge16).verdict(HONEST_KERNELS[name])
    assert verdict.accepted, f"{verdict.stage}: {verdict.reason}"
    assert verdict.speedup is not None
    assert verdict.races[0].arms[0].name == "candidate"


@pytest.mark.parametrize("name", EVERYWHERE)
def test_an_honest_kernel_is_accepted_in_half_precision_too(name: str, judge_half: Judge) -> None:
    verdict = judge_half.verdict(HONEST_KERNELS[name])
    assert verdict.accepted, f"{verdict.stage}: {verdict.reason}"


@pytest.mark.parametrize("name", ["plain composition", "more accurate than the reference", "sums in another order"])
def test_an_honest_kernel_is_accepted_in_double_precision_too(name: str, judge_double: Judge) -> None:
    source = HONEST_KERNELS[name].replace("x.float()", "x").replace("weight.float()", "weight")
    verdict = judge_double.verdict(source.replace("x.to(torch.float32)", "x"))
    assert verdict.accepted, f"{verdict.stage}: {verdict.reason}"


@pytest.mark.parametrize("name", TRITON_KERNELS)
def test_an_honest_triton_kernel_is_accepted(name: str, judge32: Judge) -> None:
    verdict = judge32.verdict(TRITON_KERNELS[name])
    assert verdict.accepted, f"{verdict.stage}: {verdict.reason}"


def test_an_honest_triton_kernel_is_accepted_in_half_precision(judge_half: Judge) -> None:
    verdict = judge_half.verdict(TRITON_KERNELS["Triton, a program a row"])
    assert verdict.accepted, f"{verdict.stage}: {verdict.reason}"


def test_honest_kernels_of_integers_and_booleans_are_accepted(
    make_task: Callable[..., Path], quick: Callable[[Path], Judge]
) -> None:
    draws = torch.Generator().manual_seed(2)
    x, mask = torch.randint(-9, 9, (7, 12), generator=draws), torch.rand(7, 12, generator=draws) < 0.5
    folder = make_task(INTEGERS, {"x": x, "mask": mask}, outputs=2, symbols=(((0, 0), (1, 0)), ((0, 1), (1, 1))))
    with quick(folder) as court:
        for name, source in INTEGER_KERNELS.items():
            assert (name, court.verdict(source).reason) == (name, None)
