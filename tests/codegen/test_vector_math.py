"""The vectorised functions are as exact as they say, over a sweep of all floats and a dense one where they bend."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hotswap.optimizer.codegen.cpp_loops import vector_math
from hotswap.optimizer.native import compile_cpp

# Function, its float64 original, worst error in units of the last place (normal results), largest argument.
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "fast_exp": (torch.exp, 1.0, math.inf),
    "exp_below": (torch.exp, 1.0, 0.0),
    "fast_log": (torch.log, 1.0, math.inf),
    "fast_tanh": (torch.tanh, 2.0, math.inf),
    "fast_erf": (torch.erf, 1.0, math.inf),
    "fast_sigmoid": (torch.sigmoid, 2.5, math.inf),
}


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    names = [*FUNCTIONS, "one_plus_erf", "one_plus_erf_half", "to_bf16"]
    loops = "".join(
        f'extern "C" void run_{name}(const float* x, {out}* y, int64_t n) {{\n'
        f"#pragma omp simd\n    for (int64_t j = 0; j < n; ++j) y[j] = {name}(x[j]);\n}}\n"
        for name in names
        for out in ["uint16_t" if name == "to_bf16" else "float"]
    )
    head = "#include <math.h>\n#include <stdint.h>\n#include <string.h>\n"
    return compile_cpp(head + vector_math(" ".join(names)) + loops)


def apply(library: ctypes.CDLL, name: str, x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    y = torch.empty(x.shape, dtype=dtype)
    function = getattr(library, f"run_{name}")
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    function(x.data_ptr(), y.data_ptr(), x.numel())
    return y


def sweep() -> Tensor:
    patterns = torch.from_numpy(np.arange(0, 2**32, 4099, dtype=np.uint64).astype(np.uint32).view(np.float32).copy())
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])
    return torch.cat((patterns, special, torch.linspace(-110, 90, 500_001), torch.linspace(-6, 6, 500_001)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_within_its_bound_and_exact_at_the_limits(library: ctypes.CDLL, name: str) -> None:
    original, bound, largest = FUNCTIONS[name]
    x = sweep()
    x = x[~(x > largest)]
    got, want = apply(library, name, x), original(x.double())
    rounded = want.float()
    assert torch.equal(got.isnan(), rounded.isnan())
    assert torch.equal(got.isinf(), rounded.isinf())
    normal = rounded.isfinite() & (rounded.abs() >= torch.finfo(torch.float32).tiny)
    place = torch.from_numpy(np.spacing(rounded[normal].abs().numpy())).double()
    assert ((got[normal].double() - want[normal]).abs() / place).max().item() <= bound
    tiny = rounded.isfinite() & ~normal
    assert bool(((got[tiny].double() - want[tiny]).abs() <= torch.finfo(torch.float32).tiny).all())


def test_exp_of_minus_infinity_is_exactly_zero(library: ctypes.CDLL) -> None:
    x = torch.tensor([-math.inf, -1e30, -105.0])
    assert torch.equal(apply(library, "fast_exp", x), torch.zeros(3))
    assert torch.equal(apply(library, "exp_below", x), torch.zeros(3))


def test_one_plus_erf_does_not_cancel(library: ctypes.CDLL) -> None:
    x = sweep()
    want = torch.special.erfc(-x.double())
    for name, near, far in (("one_plus_erf", 2e-7, 0.1), ("one_plus_erf_half", 1.4e-4, 0.02)):
        got = apply(library, name, x)
        assert torch.equal(got.isnan(), want.isnan())
        seen = ~want.isnan()
        assert (got - want)[seen].abs().max().item() <= near
        relative = ((got - want).abs() / want)[seen & (x > -8)]
        assert relative.max().item() <= far


def test_rounding_to_bf16_is_torchs_for_every_kind_of_float(library: ctypes.CDLL) -> None:
    x = sweep()
    got = apply(library, "to_bf16", x, torch.bfloat16)
    want = x.bfloat16()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got[~got.isnan()], want[~want.isnan()])
