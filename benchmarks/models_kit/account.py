"""What a call of a model costs beside its time: device-busy time, launches, peak memory, FLOPs and their floor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from hotswap.models.workload import Call
from hotswap.profiler.attention_flops import ATTENTION_FLOPS
from hotswap.profiler.recording import Limits

from .cached import cached_bytes, in_fp32

_LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")


def device_work(call: Callable[[], Any]) -> dict[str, float]:
    """Return `busy_ms` (kernels, copies and fills added up), `kernels` and `launches` (host calls) of one call.

    Without a GPU there is nothing to count, and the figures are left out.
    """
    if not torch.cuda.is_available():
        return {}
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    events = seen.events() or []
    kernels = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA and not e.is_user_annotation]
    return {
        "busy_ms": sum(e.time_range.elapsed_us() for e in kernels) / 1e3,
        "kernels": float(len(kernels)),
        "launches": float(
            sum(e.name.startswith(_LAUNCHES) for e in events if e.device_type != torch.autograd.DeviceType.CUDA)
        ),
    }


def peak_mb(call: Callable[[], Any]) -> float | None:
    """Return the most device memory that was allocated during one call, parameters included; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    made = call()
    torch.cuda.synchronize()
    del made
    return torch.cuda.max_memory_allocated() / 2**20


def floor_ms(model: Any, call: Call, run: Callable[[], Any], limits: Limits, *, causal: bool) -> dict[str, float]:
    """Return the least time the call's work can take here, and what it is made of. run: the call, in eager.

    Matmul and attention FLOPs at the measured matmul rate of the dtype (half of causal attention's are not needed), and
    once the bytes of the parameters, inputs, cached tokens and outputs at the measured copy rate, whichever is more: no
    activation traffic, so no model reaches it.
    """
    with FlopCounterMode(display=False, custom_mapping=ATTENTION_FLOPS) as counted, torch.no_grad():
        outputs = run()
    by_op = counted.get_flop_counts().get("Global", {})
    attention = sum(n for op, n in by_op.items() if "attention" in str(op))
    flops = sum(by_op.values()) - (attention / 2 if causal else 0)
    tensors = [*model.parameters(), *_tensors((call.kwargs, dict(outputs) if hasattr(outputs, "items") else outputs))]
    moved = sum(t.numel() * t.element_size() for t in tensors) + cached_bytes(call)
    rate = max(limits.matmul_tflop_s.values(), default=0.0)
    compute = flops / (rate * 1e9) if rate else 0.0
    traffic = moved / (limits.copy_gb_s * 1e6)
    return {"floor_ms": max(compute, traffic), "tflop": flops / 1e12, "least_mb": moved / 2**20}


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def differences(model: Any, call: Call, eager: Any, made: Any, *, wider: bool) -> dict[str, float]:
    """Return how far outputs are from eager's, and both from the model in fp32: relative errors in norm, equal top-1.

    made: another arm's outputs. wider: whether the model is to be run in fp32, too, which needs twice its memory more.
    """
    with torch.no_grad():
        eager, ours = _leading(eager), _leading(made)
        said = {
            "to_eager": _apart(ours, eager),
            "top1": float((ours.argmax(-1) == eager.argmax(-1)).double().mean()),
        }
        if wider:
            exact = _leading(_in_fp32(model, call))
            said |= {"to_fp32": _apart(ours, exact), "eager_to_fp32": _apart(eager, exact)}
    return said


def _in_fp32(model: Any, call: Call) -> Any:
    import copy

    wide = copy.deepcopy(model).float()
    given = in_fp32(call)
    with contextlib.suppress(AttributeError):
        torch.cuda.empty_cache()
    return wide(*given.args, **given.kwargs)


def _leading(outputs: Any) -> torch.Tensor:
    """Return the first float tensor of the outputs, as it is: logits or hidden states."""
    return next(t for t in _tensors(dict(outputs) if hasattr(outputs, "items") else outputs) if t.is_floating_point())


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the relative error in norm; taken in pieces, as logits in fp64 would not fit beside a large model."""
    square, whole = 0.0, 0.0
    for a, b in zip(one.flatten(0, -2).split(256), other.flatten(0, -2).split(256), strict=True):
        square += float((a.double() - b.double()).square().sum())
        whole += float(b.double().square().sum())
    return (square / whole) ** 0.5 if whole else 0.0
