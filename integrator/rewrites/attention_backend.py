"""Call attention through the kernel that is fastest for its shape here: cuDNN's, flash, memory-efficient, or ours.

Precondition: a GPU, sizes that are numbers, no dropout. Proof: each back end that takes the call is run on random
values of that shape, must agree with torch's own choice to within the dtype's rounding, and is timed in a CUDA graph.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...extractor.node_ops import example
from .attention_call import AttentionCall, attention_calls, sdpa
from .rewrite import Applied, NotApplied, Notes, Rewrite, Setting
from .split_attention import attention_by_splits

_CALLS, _REPEATS = 10, 5
# Another back end than torch's own choice has to be this much faster.
MARGIN = 0.97


def attention_by_cudnn(*args: Any, **kwargs: Any) -> torch.Tensor:
    """scaled_dot_product_attention through cuDNN."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return sdpa(*args, **kwargs)


def attention_by_flash(*args: Any, **kwargs: Any) -> torch.Tensor:
    """scaled_dot_product_attention through the flash kernel."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa(*args, **kwargs)


def attention_by_efficient(*args: Any, **kwargs: Any) -> torch.Tensor:
    """scaled_dot_product_attention through the memory-efficient kernel."""
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return sdpa(*args, **kwargs)


BACK_ENDS: tuple[Callable[..., torch.Tensor], ...] = (
    attention_by_cudnn,
    attention_by_flash,
    attention_by_efficient,
    attention_by_splits,
)
Clock = Callable[[Callable[[], torch.Tensor]], float]

_chosen: dict[tuple[Any, ...], tuple[Callable[..., torch.Tensor] | None, str]] = {}


def _apply(gm: fx.GraphModule, setting: Setting, notes: Notes) -> None:
    choose_back_ends(gm, notes, on=("cuda",), clock=graph_us)


def choose_back_ends(gm: fx.GraphModule, notes: Notes, *, on: tuple[str, ...], clock: Clock) -> None:
    """Fix the back end of each call on devices `on` where one beats torch's own choice by `clock` (us a call)."""
    for call in list(attention_calls(gm)):
        if example(call.query).device.type not in on or not call.is_static or call.dropout != 0.0:
            continue
        asked = _signature(call)
        if asked not in _chosen:
            with unset_fake_temporarily(), torch.no_grad():
                _chosen[asked] = _race(call, clock)
        best, said = _chosen[asked]
        if best is None:
            notes.left.append(NotApplied(ATTENTION_BACKEND.name, call.node.name, said))
        else:
            call.node.target = best
            notes.applied.append(Applied(ATTENTION_BACKEND.name, call.node.name, said))


def _signature(call: AttentionCall) -> tuple[Any, ...]:
    return (*layouts(call.query, call.key, call.value, call.mask), call.causal, call.scale, call.grouped)


def _race(call: AttentionCall, clock: Clock) -> tuple[Callable[..., torch.Tensor] | None, str]:
    """Return the fastest back end, None where torch's own choice is as fast; and the figures."""
    inputs = [like(n) for n in (call.query, call.key, call.value)]
    kwargs: dict[str, Any] = {
        "attn_mask": like(call.mask) if call.mask is not None else None,
        "is_causal": call.causal,
        "scale": call.scale,
        "enable_gqa": call.grouped,
    }
    usual: Callable[..., torch.Tensor] = sdpa
    expected = usual(*inputs, **kwargs)
    usual_us = clock(functools.partial(usual, *inputs, **kwargs))
    times, figures = timed_back_ends(inputs, kwargs, expected, clock)
    figures = [f"torch's choice {usual_us:.1f} us", *figures]
    best = min(times, key=lambda one: times[one], default=None)
    said = ", ".join(figures)
    return (best, said) if best is not None and times[best] <= MARGIN * usual_us else (None, said)


def timed_back_ends(
    inputs: list[torch.Tensor], kwargs: dict[str, Any], expected: torch.Tensor, clock: Clock
) -> tuple[dict[Callable[..., torch.Tensor], float], list[str]]:
    """Return microseconds a call for each back end that takes it and gives what is expected; and a figure for each."""
    times: dict[Callable[..., torch.Tensor], float] = {}
    figures: list[str] = []
    for back_end in BACK_ENDS:
        name = back_end.__name__.rpartition("_")[2]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch says at length why a back end does not take a call
                made = back_end(*inputs, **kwargs)
        except RuntimeError:  # torch's way to say that this back end does not take such a call
            figures.append(f"{name} does not take it")
            continue
        if not agree(made, expected):
            figures.append(f"{name} differs")
            continue
        times[back_end] = clock(functools.partial(back_end, *inputs, **kwargs))
        figures.append(f"{name} {times[back_end]:.1f} us")
    return times, figures


def agree(made: torch.Tensor, expected: torch.Tensor, roundings: int = 8) -> bool:
    """Whether two results of attention on values of about 1 are the same but for a few roundings of the dtype."""
    if made.shape != expected.shape:
        return False
    apart = (made.double() - expected.double()).abs().max()
    return bool(apart <= roundings * torch.finfo(expected.dtype).eps)


def layouts(*nodes: fx.Node | None) -> tuple[Any, ...]:
    """Return shape, strides, dtype and device of each node there is: calls alike in them are proven and timed once."""
    tensors = [example(n) for n in nodes if n is not None]
    return tuple((tuple(t.shape), tuple(t.stride()), t.dtype, t.device) for t in tensors)


def like(node: fx.Node) -> torch.Tensor:
    """Return a tensor of the node's layout: random values, or for a bool mask all but every third True."""
    fake = example(node)
    reach = sum((size - 1) * step for size, step in zip(fake.shape, fake.stride(), strict=True)) + 1
    if fake.dtype.is_floating_point:
        flat = torch.randn(reach, device=fake.device, generator=torch.Generator(fake.device).manual_seed(0)).to(
            fake.dtype
        )
    else:
        flat = (torch.arange(reach, device=fake.device) % 3 != 2).to(fake.dtype)
    return flat.as_strided(fake.shape, fake.stride())


def graph_us(run: Callable[[], torch.Tensor]) -> float:
    """Return microseconds of device time a call takes, the least of a few replays of a CUDA graph of several calls."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(_CALLS):
            run()
    times = []
    for _ in range(_REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        graph.replay()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) * 1e3 / _CALLS)
    return min(times)


ATTENTION_BACKEND = Rewrite("attention-backend", "attention through the kernel that is fastest for its shape", _apply)
