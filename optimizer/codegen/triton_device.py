# mypy: ignore-errors
# ruff: noqa: N803, RET505
"""Device functions an emitted kernel may call; the emitter copies those it uses, with what they need, into the file.

Nothing imports this module: it is read as text. Approximations state their error; `float32` only unless said otherwise.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def either(a, b):
    return a | b


@triton.jit
def both(a, b):
    return a & b


@triton.jit
def unknown(a, HIDE: tl.constexpr):
    # A 16-bit value as one the compiler knows nothing of: else it keeps the widened copy.
    if HIDE:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [a], dtype=a.dtype, is_pure=False, pack=2)
    else:
        return a


@triton.jit
def finite(a):
    # 0 in place of an infinity: a point to measure exponents from that never makes inf - inf.
    return tl.where(tl.abs(a) == float("inf"), 0.0, a)


@triton.jit
def sigmoid(a):
    return 1 / (1 + tl.exp(-a))


@triton.jit
def tanh(a):
    # A polynomial near 0, where 1 - 2 / (1 + exp(2x)) cancels; relative error below 5e-7.
    t = tl.abs(a)
    s = a * a
    p = tl.fma(s, tl.fma(s, tl.fma(s, tl.fma(s, 0.0218694885, -0.0539682540), 0.1333333333), -0.3333333333), 1.0)
    e = 1 - 2 / (1 + tl.exp(2 * t))
    return tl.where(t < 0.25, a * p, tl.where(a < 0, -e, e))


@triton.jit
def one_plus_tanh(a):
    return 2 / (1 + tl.exp(-2 * a))


@triton.jit
def one_plus_erf(a):
    # 2 - erfc or erfc of |x|: one polynomial for -log(erfc). Absolute error 1.8e-7; does not cancel for negative x.
    t = tl.abs(a)
    p = tl.fma(t, 8.91598333e-08, -3.14362342e-06)
    p = tl.fma(p, t, 4.35373477e-05)
    p = tl.fma(p, t, -0.000294300175)
    p = tl.fma(p, t, 0.000879962288)
    p = tl.fma(p, t, 0.000850311888)
    p = tl.fma(p, t, -0.0198738538)
    p = tl.fma(p, t, 0.103048727)
    p = tl.fma(p, t, 0.63657254)
    p = tl.fma(p, t, 1.12838185)
    e = tl.exp(-p * t)
    return tl.where(a < 0, e, 2 - e)


@triton.jit
def one_plus_erf_half(a):
    # Relative error 7e-5 (2% where 1 + erf is below 1e-8), for results that are rounded to half precision.
    t = tl.abs(a)
    p = tl.fma(t, 5.13002902e-6, -1.78742221e-4)
    p = tl.fma(p, t, 2.56346813e-3)
    p = tl.fma(p, t, -2.01729562e-2)
    p = tl.fma(p, t, 1.00517613e-1)
    p = tl.fma(p, t, 6.39246985e-1)
    p = tl.fma(p, t, 1.12766281)
    e = tl.exp(-p * t)
    e = tl.where(t > 9.0, 0.0, e)
    return tl.where(a < 0, e, 2 - e)


@triton.jit
def floor_divide(a, b):
    return tl.floor(a / b)


@triton.jit
def floor_divide_int(a, b):
    q = a // b
    return tl.where((q * b != a) & ((a < 0) != (b < 0)), q - 1, q)


@triton.jit
def floor_remainder(a, b):
    # The remainder takes the sign of the divisor.
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@triton.jit
def expm1(a):
    return libdevice.expm1(a)


@triton.jit
def log1p(a):
    return libdevice.log1p(a)


@triton.jit
def power(a, b):
    return libdevice.pow(a, b)


@triton.jit
def nearest(a):
    return libdevice.rint(a)


@triton.jit
def truncate(a):
    return libdevice.trunc(a)


@triton.jit
def tanh_double(a):
    return libdevice.tanh(a)
