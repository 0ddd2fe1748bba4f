"""No honest kernel is rejected, whatever its style, in either dtype."""

from __future__ import annotations

import pytest

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
}


@pytest.mark.parametrize("name", HONEST_KERNELS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_honest_kernel_is_accepted(name: str, dtype: str, judge32: Judge, judge16: Judge) -> None:
    verdict = (judge32 if dtype == "fp32" else judge16).verdict(HONEST_KERNELS[name])
    assert verdict.accepted, f"{verdict.stage}: {verdict.reason}"
    assert verdict.speedup is not None
    assert verdict.races[0].arms[0].name == "candidate"
