"""What a call of a model costs beside its time: device-busy time, launches, peak memory, FLOPs and their floor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from hotswap.models.workload import Call
from hotswap.profiler.flop_formulas import FLOP_FORMULAS
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
    once the bytes that are read of the parameters (`Reads`), of the inputs, cached tokens and outputs at the measured
    copy rate, whichever is more: no activation traffic, so no model reaches it.
    """
    reads = Reads(model.parameters())
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=FLOP_FORMULAS) as counted, reads:
        outputs = run()
    by_op = counted.get_flop_counts().get("Global", {})
    attention = sum(n for op, n in by_op.items() if "attention" in str(op))
    flops = sum(by_op.values()) - (attention / 2 if causal else 0)
    tensors = _tensors((call.kwargs, dict(outputs) if hasattr(outputs, "items") else outputs))
    moved = reads.bytes + sum(t.numel() * t.element_size() for t in tensors) + cached_bytes(call)
    rate = max(limits.matmul_tflop_s.values(), default=0.0)
    compute = flops / (rate * 1e9) if rate else 0.0
    traffic = moved / (limits.copy_gb_s * 1e6)
    return {"floor_ms": max(compute, traffic), "tflop": flops / 1e12, "least_mb": moved / 2**20}


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what must be read of each parameter: of a table the picked rows, of experts those with rows."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._read = {p.untyped_storage()._cdata: 0 for p in parameters}

    @property
    def bytes(self) -> int:
        return sum(self._read.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = _tensors((args, kwargs))
        if func.namespace == "prim" or (_shares_memory(made, given) and not func._schema.is_mutable):
            return made  # a view
        for tensor in given:
            storage = tensor.untyped_storage()
            if storage._cdata in self._read:
                self._read[storage._cdata] = max(self._read[storage._cdata], _read(func, tensor, given, made))
        return made


def _shares_memory(made: Any, given: Iterable[torch.Tensor]) -> bool:
    there = {t.untyped_storage()._cdata for t in given}
    return all(t.untyped_storage()._cdata in there for t in _tensors(made))


def _read(func: Any, tensor: torch.Tensor, given: list[torch.Tensor], made: Any) -> int:
    """Return the bytes of the memory behind `tensor` that one call of `func` on `given` must read."""
    whole = tensor.untyped_storage().nbytes()
    if func._overloadpacket is torch.ops.aten._grouped_mm:
        return int(_hit(*given[1:3]) * whole)
    if any(t.dtype in (torch.int32, torch.int64) for t in given):
        return min(whole, sum(t.numel() * tensor.element_size() for t in _tensors(made)))
    return whole


def _hit(stack: torch.Tensor, ends: torch.Tensor) -> float:
    """Return the share of a stack of matrices whose groups, which end at `ends`, have rows."""
    counts = ends.diff(prepend=ends.new_zeros(1))
    return float((counts > 0).sum()) / stack.shape[0]


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
