"""The rows of the kernel table: for each task the eager code, its inputs, and how rivals are called on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Function = Callable[..., Any]
# sizes, dtype, device, generator -> the inputs of one call
Make = Callable[[tuple[int, ...], torch.dtype, str, torch.Generator], list[Tensor]]
# Liger's package of ops -> a function of the row's inputs
Liger = Callable[[Callable[[str], Any]], Function]


@dataclass(frozen=True)
class Family:
    """One task. reference: eager code, returns a tuple. fused: the best fused torch op, None where it is the reference.

    names: of the inputs. weights: those that are a model's own. sizes: one tuple a row of the table. rows: position in
    `sizes` that may be cut for a check against fp64. starter: file name of the published starter kernel.
    most_us: what the table asks for, by label. dense: outputs must be contiguous, views of padded rows are refused.
    """

    task: str
    reference: Function
    make: Make
    names: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    rows: int = 0
    weights: tuple[str, ...] = ()
    fused: Function | None = None
    liger: Liger | None = None
    starter: str | None = None
    flops: Callable[[tuple[int, ...]], int] = lambda _: 0
    kind: str = "memory"
    most_us: dict[str, float] = field(default_factory=dict)
    dense: bool = False


@dataclass(frozen=True)
class Row:
    """A family at one size and dtype."""

    family: Family
    size: tuple[int, ...]
    dtype: torch.dtype

    @property
    def shape(self) -> str:
        return "x".join(str(s) for s in self.size)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def title(self) -> str:
        return f"{self.family.task} {self.shape} {self.dtype_name}"

    def inputs(self, device: str, seed: int, *, rows: int | None = None) -> list[Tensor]:
        """Return inputs of one call, drawn on the device by `seed`; rows: cut to this many."""
        size = list(self.size)
        if rows is not None:
            size[self.family.rows] = min(rows, size[self.family.rows])
        return self.family.make(tuple(size), self.dtype, device, torch.Generator(device).manual_seed(seed))

    def bytes(self, inputs: list[Tensor], outputs: list[Tensor]) -> int:
        """Return what a perfect kernel moves: inputs read once, outputs written once."""
        return sum(t.numel() * t.element_size() for t in [*inputs, *outputs])


def rows(dtypes: tuple[torch.dtype, ...]) -> Iterator[Row]:
    """Yield every row of the table, all of one dtype first."""
    for dtype in dtypes:
        for family in FAMILIES:
            for size in family.sizes:
                yield Row(family, size, dtype)


def _randn(shape: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> Tensor:
    return torch.randn(shape, device=device, generator=draws, dtype=torch.float32).to(dtype)


def _x(size: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> list[Tensor]:
    return [_randn(size, dtype, device, draws)]


def _x_weight(size: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> list[Tensor]:
    return [_randn(size, dtype, device, draws), 1 + 0.1 * _randn(size[-1:], dtype, device, draws)]


def _x_weight_bias(size: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> list[Tensor]:
    return [*_x_weight(size, dtype, device, draws), 0.1 * _randn(size[-1:], dtype, device, draws)]


def _two(size: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> list[Tensor]:
    return [_randn(size, dtype, device, draws), _randn(size, dtype, device, draws)]


def _two_weight(size: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> list[Tensor]:
    return [*_two(size, dtype, device, draws), 1 + 0.1 * _randn(size[-1:], dtype, device, draws)]


def _logits(size: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> list[Tensor]:
    target = torch.randint(0, size[1], size[:1], device=device, generator=draws)
    target[::17] = -100
    return [2 * _randn(size, dtype, device, draws), target]


def _rotary(size: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> list[Tensor]:
    angles = torch.rand(1, size[2], size[3], device=device, generator=draws) * 6.28
    return [*_two(size, dtype, device, draws), angles.cos().to(dtype), angles.sin().to(dtype)]


def _linears(*widths: int) -> Make:
    def make(size: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> list[Tensor]:
        rows, inner, scale = size[0], size[1], size[2]
        weights = [_randn((w * scale, inner), dtype, device, draws) * inner**-0.5 for w in widths]
        return [_randn((rows, inner), dtype, device, draws), *weights]

    return make


def _head(size: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> list[Tensor]:
    rows, inner, vocabulary = size
    weight = _randn((vocabulary, inner), dtype, device, draws) * inner**-0.5
    return [_randn((rows, inner), dtype, device, draws), weight]


def _head_target(size: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> list[Tensor]:
    return [*_head(size, dtype, device, draws), _logits((size[0], size[2]), dtype, device, draws)[1]]


def _heads(size: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> list[Tensor]:
    batch, queries, keys, length, depth = size
    return [_randn((batch, h, length, depth), dtype, device, draws) for h in (queries, keys, keys)]


def _head_bias(size: tuple[int, ...], dtype: torch.dtype, device: str, draws: torch.Generator) -> list[Tensor]:
    return [*_head(size, dtype, device, draws), 0.1 * _randn(size[2:], dtype, device, draws)]


def rmsnorm(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """As transformers writes it: fp32 inside, rounded before the weight."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (weight * wide.to(x.dtype),)


def fused_rmsnorm(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (F.rms_norm(x, weight.shape, weight, 1e-6),)


def add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    stream = x + residual
    return (stream, *rmsnorm(stream, weight))


def fused_add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    stream = x + residual
    return (stream, *fused_rmsnorm(stream, weight))


def softmax(x: Tensor) -> tuple[Tensor, ...]:
    return (torch.softmax(x, -1),)


def cross_entropy(logits: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return (F.cross_entropy(logits, target),)


def layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return (F.layer_norm(x, weight.shape, weight, bias, 1e-5),)


def swiglu(gate: Tensor, up: Tensor) -> tuple[Tensor, ...]:
    return (F.silu(gate) * up,)


def _rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotary_half(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin


def _rotate_pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def rotary_pairs(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + _rotate_pairs(q) * sin, k * cos + _rotate_pairs(k) * sin


def sum_last(x: Tensor) -> tuple[Tensor, ...]:
    return (x.sum(-1),)


def sum_first(x: Tensor) -> tuple[Tensor, ...]:
    return (x.sum(0),)


def two_linears(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, a), F.linear(x, b)


def three_linears(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, q), F.linear(x, k), F.linear(x, v)


def head(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (F.linear(x, weight),)


def linear_cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    return (F.cross_entropy(F.linear(x, weight), target),)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return (F.gelu(F.linear(x, weight, bias), approximate="tanh"),)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return (F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),)


def _liger_rms(ops: Callable[[str], Any]) -> Function:
    function = ops("rms_norm").LigerRMSNormFunction
    return lambda x, w: (function.apply(x, w, 1e-6, 0.0, "llama", False),)


def _liger_add_rms(ops: Callable[[str], Any]) -> Function:
    function = ops("fused_add_rms_norm").LigerFusedAddRMSNormFunction
    return lambda x, r, w: tuple(function.apply(x, r, w, 1e-6, 0.0, "llama", False))[::-1]


def _liger_softmax(ops: Callable[[str], Any]) -> Function:
    function = ops("softmax").LigerSoftmaxFunction
    return lambda x: (function.apply(x),)


def _liger_cross_entropy(ops: Callable[[str], Any]) -> Function:
    function = ops("cross_entropy").LigerCrossEntropyFunction
    return lambda x, t: (function.apply(x, t, None)[0],)


def _liger_layernorm(ops: Callable[[str], Any]) -> Function:
    function = ops("layer_norm").LigerLayerNormFunction
    return lambda x, w, b: (function.apply(x, w, b, 1e-5),)


def _liger_swiglu(ops: Callable[[str], Any]) -> Function:
    function = ops("swiglu").LigerSiLUMulFunction
    return lambda gate, up: (function.apply(gate, up),)


_ROTARY = ("q", "k", "cos", "sin")
_ROTARY_SIZES = ((2, 32, 2048, 128), (2, 32, 4096, 128))
_SUMS = ((8192, 8192), (16384, 4096))

FAMILIES = (
    Family(
        "rmsnorm", rmsnorm, _x_weight, ("x", "weight"), ((4096, 4096), (8192, 8192), (32768, 2048)),
        weights=("weight",), fused=fused_rmsnorm, liger=_liger_rms, starter="rmsnorm",
        most_us={"4096x4096": 19, "8192x8192": 68, "32768x2048": 68},
    ),
    Family(
        "softmax", softmax, _x, ("x",), ((4096, 4096), (8192, 8192), (4096, 50257), (1024, 32768)),
        liger=_liger_softmax, starter="softmax",
        most_us={"4096x4096": 19, "8192x8192": 68, "4096x50257": 225, "1024x32768": 37},
    ),
    Family(
        "cross entropy", cross_entropy, _logits, ("logits", "target"),
        ((4096, 32000), (4096, 50257), (8192, 32000), (8192, 128256)),
        liger=_liger_cross_entropy, starter="cross_entropy",
        most_us={"4096x32000": 68, "4096x50257": 106, "8192x32000": 134, "8192x128256": 540},
    ),
    Family(
        "layernorm", layernorm, _x_weight_bias, ("x", "weight", "bias"), ((8192, 4096), (4096, 5120), (32768, 768)),
        weights=("weight", "bias"), liger=_liger_layernorm, starter="layernorm",
        most_us={"8192x4096": 35, "4096x5120": 23, "32768x768": 27},
    ),
    Family(
        "add+rmsnorm", add_rmsnorm, _two_weight, ("x", "residual", "weight"), ((4096, 4096),),
        weights=("weight",), fused=fused_add_rmsnorm, liger=_liger_add_rms, most_us={"4096x4096": 36},
    ),
    Family(
        "swiglu", swiglu, _two, ("gate", "up"), ((8192, 8192),), liger=_liger_swiglu, most_us={"8192x8192": 98},
    ),
    Family("rotary half", rotary_half, _rotary, _ROTARY, _ROTARY_SIZES, rows=2),
    Family("rotary interleaved", rotary_pairs, _rotary, _ROTARY, _ROTARY_SIZES, rows=2),
    Family("sum last", sum_last, _x, ("x",), _SUMS, starter="reduce"),
    Family("sum first", sum_first, _x, ("x",), _SUMS),
    Family(
        "q,k,v linears", three_linears, _linears(4, 1, 1), ("x", "q", "k", "v"), ((2048, 2048, 512),),
        weights=("q", "k", "v"), kind="anchor", flops=lambda s: 12 * s[0] * s[1] * s[2], most_us={"2048x2048x512": 40},
    ),
    Family(
        "gate,up linears", two_linears, _linears(1, 1), ("x", "gate", "up"), ((2048, 2048, 8192),),
        weights=("gate", "up"), kind="anchor", flops=lambda s: 2 * s[0] * s[1] * 2 * s[2],
        most_us={"2048x2048x8192": 198},
    ),
    Family(
        "q,k,v linears, contiguous", three_linears, _linears(4, 1, 1), ("x", "q", "k", "v"), ((2048, 2048, 512),),
        weights=("q", "k", "v"), kind="anchor", flops=lambda s: 12 * s[0] * s[1] * s[2], dense=True,
    ),
    Family(
        "gate,up linears, contiguous", two_linears, _linears(1, 1), ("x", "gate", "up"), ((2048, 2048, 8192),),
        weights=("gate", "up"), kind="anchor", flops=lambda s: 4 * s[0] * s[1] * s[2], dense=True,
    ),
    Family(
        "GPT-2 head", head, _head, ("x", "weight"), ((8192, 768, 50257),),
        weights=("weight",), kind="anchor", flops=lambda s: 2 * s[0] * s[1] * s[2], most_us={"8192x768x50257": 1030},
    ),
    Family(
        "GPT-2 head, contiguous", head, _head, ("x", "weight"), ((8192, 768, 50257),), weights=("weight",),
        kind="anchor", flops=lambda s: 2 * s[0] * s[1] * s[2], most_us={"8192x768x50257": 1250}, dense=True,
    ),
    # Not in the table: what the other templates are for.
    Family(
        "one-row linear", head, _head, ("x", "weight"), ((1, 2048, 8192), (1, 8192, 2048), (1, 2048, 128256)),
        weights=("weight",), kind="anchor", flops=lambda s: 2 * s[0] * s[1] * s[2],
    ),
    Family(
        "causal attention", causal_attention, _heads, ("q", "k", "v"), ((1, 32, 8, 2048, 64), (1, 32, 8, 8192, 128)),
        rows=3, kind="anchor", flops=lambda s: 2 * s[0] * s[1] * s[3] ** 2 * s[4],
    ),
    Family(
        "linear+gelu", linear_gelu, _head_bias, ("x", "weight", "bias"), ((8192, 768, 3072), (4096, 4096, 4096)),
        weights=("weight", "bias"), kind="anchor", flops=lambda s: 2 * s[0] * s[1] * s[2],
    ),
    Family(
        "linear cross entropy", linear_cross_entropy, _head_target, ("x", "weight", "target"), ((8192, 768, 50257),),
        weights=("weight",), kind="anchor", flops=lambda s: 2 * s[0] * s[1] * s[2],
    ),
)  # fmt: skip
