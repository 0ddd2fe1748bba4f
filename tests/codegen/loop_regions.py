"""Regions of real models as plain functions, and kernels built from them once a session."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hotswap.optimizer.codegen.cpp import CppKnobs, emit
from hotswap.optimizer.codegen.lower import lower

Function = Callable[..., Tensor | tuple[Tensor, ...]]


def wide(x: Tensor) -> Tensor:
    """Return `x` as models compute norms: in float32, or better where it is better already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True)
class Region:
    """reference: works in any dtype, so float64 inputs make it its own oracle. inputs: from rows, columns, dtype."""

    name: str
    reference: Function
    inputs: Callable[[int, int, torch.dtype], tuple[Tensor, ...]]
    even: bool = False


def rms_norm(x: Tensor, w: Tensor) -> Tensor:
    h = wide(x)
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def residual_rms_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x + r
    return rms_norm(h, w), h


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.layer_norm(x, (x.shape[-1],), w, b)


def residual_layer_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.layer_norm(x + r, (x.shape[-1],), w, b)


def tanh_gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def swiglu(g: Tensor, u: Tensor) -> Tensor:
    return functional.silu(g) * u


def packed_swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(wide(scores * 0.125 + mask), -1).to(scores.dtype)


def embedding_norm(ids: Tensor, table: Tensor, places: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = functional.embedding(ids, table) + places[:, : ids.shape[1]]
    return functional.layer_norm(x, (x.shape[-1],), w, b)


def dequantise(q: Tensor, scale: Tensor) -> Tensor:
    return (q.to(scale.dtype) - 8) * scale


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(wide(logits), labels, reduction="none")


def rotary(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = q.shape[-1] // 2
    turned = torch.cat((-q[..., half:], q[..., :half]), dim=-1)
    return q * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def normed_rotary(q: Tensor, w: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotary(rms_norm(q, w), cos, sin)


def _mask(columns: int, dtype: torch.dtype) -> Tensor:
    hidden = torch.arange(columns) % 3 == 1
    return torch.zeros(1, 1, columns).masked_fill(hidden, -math.inf).to(dtype)


def _draw(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape).to(dtype)


REGIONS = [
    Region("rms_norm", rms_norm, lambda r, c, d: (_draw(2, r, c, dtype=d), _draw(c, dtype=d))),
    Region(
        "residual_rms_norm",
        residual_rms_norm,
        lambda r, c, d: (_draw(2, r, c, dtype=d), _draw(2, r, c, dtype=d), _draw(c, dtype=d)),
    ),
    Region(
        "layer_norm", layer_norm, lambda r, c, d: (_draw(2, r, c, dtype=d) + 3, _draw(c, dtype=d), _draw(c, dtype=d))
    ),
    Region(
        "residual_layer_norm",
        residual_layer_norm,
        lambda r, c, d: (_draw(2, r, c, dtype=d), _draw(2, r, c, dtype=d), _draw(c, dtype=d), _draw(c, dtype=d)),
    ),
    Region("gelu", functional.gelu, lambda r, c, d: (_draw(2, r, c, dtype=d) * 3,)),
    Region(
        "tanh_gelu", lambda x: functional.gelu(x, approximate="tanh"), lambda r, c, d: (_draw(2, r, c, dtype=d) * 3,)
    ),
    Region("swiglu", swiglu, lambda r, c, d: (_draw(2, r, c, dtype=d) * 4, _draw(2, r, c, dtype=d))),
    Region("packed_swiglu", packed_swiglu, lambda r, c, d: (_draw(2, r, 2 * c, dtype=d),)),
    Region("masked_softmax", masked_softmax, lambda r, c, d: (_draw(3, r, c, dtype=d) * 9, _mask(c, d))),
    Region(
        "embedding_norm",
        embedding_norm,
        lambda r, c, d: (
            torch.randint(0, 11, (2, r)),
            _draw(11, c, dtype=d),
            _draw(1, r + 3, c, dtype=d),
            _draw(c, dtype=d),
            _draw(c, dtype=d),
        ),
    ),
    Region(
        "dequantise",
        dequantise,
        lambda r, c, d: (torch.randint(0, 16, (r, c), dtype=torch.uint8), _draw(r, 1, dtype=d)),
    ),
    Region("log_softmax", lambda x: torch.log_softmax(x, -1), lambda r, c, d: (_draw(2, r, c, dtype=d) * 9,)),
    Region("logsumexp", lambda x: torch.logsumexp(x, -1), lambda r, c, d: (_draw(2, r, c, dtype=d) * 9,)),
    Region("cross_entropy", cross_entropy, lambda r, c, d: (_draw(r, c, dtype=d), torch.randint(0, c, (r,)))),
    Region(
        "rotary",
        rotary,
        lambda r, c, d: (_draw(2, 3, r, 2 * c, dtype=d), _draw(2, r, 2 * c, dtype=d), _draw(2, r, 2 * c, dtype=d)),
    ),
    Region(
        "normed_rotary",
        normed_rotary,
        lambda r, c, d: (
            _draw(2, 3, r, 2 * c, dtype=d),
            _draw(2 * c, dtype=d),
            _draw(2, r, 2 * c, dtype=d),
            _draw(2, r, 2 * c, dtype=d),
        ),
    ),
    Region("embedding", functional.embedding, lambda r, c, d: (torch.randint(0, 11, (2, r)), _draw(11, c, dtype=d))),
]
DTYPES = [torch.bfloat16, torch.float32]


class Kernels:
    """Kernels by region, dtype and knobs, each built once a session and traced at a size no test uses."""

    def __init__(self) -> None:
        self._built: dict[object, Function] = {}

    def of(self, region: Region, dtype: torch.dtype, knobs: CppKnobs | None = None) -> Function:
        key = (region.name, dtype, knobs)
        if key not in self._built:
            self._built[key] = self.build(region.reference, region.inputs(6, 24, dtype), knobs)
        return self._built[key]

    def build(self, reference: Function, inputs: tuple[Tensor, ...], knobs: CppKnobs | None = None) -> Function:
        names: dict[str, Function] = {}
        exec(compile(emit(lower(reference, inputs), knobs or CppKnobs()), "<candidate>", "exec"), names)
        return names["kernel"]


def several(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def exact(reference: Function, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return what the reference makes of the same numbers in float64."""
    return several(reference(*(x.double() if x.is_floating_point() else x for x in inputs)))


def assert_close(got: Tensor, want: Tensor, columns: int) -> None:
    """Half a unit of the output's last place, plus what sums of `columns` terms lose in the computing dtype."""
    assert got.shape == want.shape
    info = torch.finfo(got.dtype)
    held = torch.finfo(torch.promote_types(got.dtype, torch.float32))
    finite = want.isfinite() & (want.abs() <= info.max)
    size = want[finite].abs()
    terms = 16 * held.eps * math.sqrt(columns + 16) * (1 + size.max().item() if size.numel() else 0.0)
    error = (got.double()[finite] - want[finite]).abs()
    assert bool((error <= 0.502 * info.eps * size + terms).all()), f"off by {(error / (info.eps * size + terms)).max()}"
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.to(got.dtype).isinf())
