"""Run a model one precision up, without copying or changing it: the yardstick for eager and patched model alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}
_COMPLEX = {torch.complex32: torch.complex64, torch.complex64: torch.complex128}


def wider_dtype(model: nn.Module, inputs: Any) -> torch.dtype:
    """Return the yardstick's dtype: fp32 where anything of the model is 16-bit, fp64 where it is fp32 throughout."""
    seen = {tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()}
    tree_map_only(torch.Tensor, lambda tensor: seen.add(tensor.dtype), inputs)
    return torch.float32 if seen & {torch.float16, torch.bfloat16} else torch.float64


def widened(tree: Any, dtype: torch.dtype) -> Any:
    """Return `tree` with every floating tensor in it raised to `dtype`; what a pytree does not reach stays."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(_target(tensor.dtype, dtype)), tree)


def call_wider(model: nn.Module, work: Callable[[nn.Module], Any], dtype: torch.dtype) -> Any:
    """Return `work(model)` computed in `dtype`, hooks and custom modules included; the model keeps its own tensors.

    Parameters and buffers are stood in for by wide copies; casts and factories inside the model that ask for less are
    widened as they are dispatched, so an `x.to(bfloat16)` in a forward does not bring the rounding back. Raises
    whatever the model raises when it cannot work that way (a kernel for one dtype only). The caller widens inputs.
    """
    stand_ins = {f"inner.{name}": tensor for name, tensor in _wide_tensors(model, dtype).items()}
    was = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _Widening(dtype):
            return functional_call(_Caller(model), stand_ins, (work,), strict=False)
    finally:
        torch.set_default_dtype(was)


class _Caller(nn.Module):
    """A module around the user's, so that its tensors can be stood in for while something other than forward runs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.training = inner.training

    def forward(self, work: Callable[[nn.Module], Any]) -> Any:
        return work(self.inner)


def _wide_tensors(model: nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    # Tied tensors share one copy; buffers are always copied, because a forward may write into them.
    made: dict[int, torch.Tensor] = {}
    wide: dict[str, torch.Tensor] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in made:
            target = _target(tensor.dtype, dtype)
            made[id(tensor)] = tensor.detach().to(target, copy=not isinstance(tensor, nn.Parameter))
        wide[name] = made[id(tensor)]
    return wide


def _target(dtype: torch.dtype, floor: torch.dtype) -> torch.dtype:
    """Return `dtype` raised to at least `floor`; integers, booleans and already wide types are left alone."""
    while (dtype in _WIDER or dtype in _COMPLEX) and torch.finfo(dtype).bits < torch.finfo(floor).bits:
        dtype = _WIDER.get(dtype) or _COMPLEX[dtype]
    return dtype


class _Widening(TorchDispatchMode):
    """Raise every floating argument and every requested floating dtype to `floor`, except what an op writes into."""

    def __init__(self, floor: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.floor = floor
        self._made: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        written = {
            id(args[i]) if i < len(args) else id(kwargs.get(argument.name))
            for i, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        }
        # A view must stay a view of its own tensor: widening it would cut later writes through it loose.
        is_view = any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments)
        if not is_view:
            args, kwargs = tree_map_only(
                torch.Tensor, lambda t: t if id(t) in written else self._widened(t), (tuple(args), kwargs)
            )
        if isinstance(kwargs.get("dtype"), torch.dtype):
            kwargs["dtype"] = _target(kwargs["dtype"], self.floor)
        return func(*args, **kwargs)

    def _widened(self, tensor: torch.Tensor) -> torch.Tensor:
        target = _target(tensor.dtype, self.floor)
        if target == tensor.dtype or type(tensor) not in (torch.Tensor, nn.Parameter):
            return tensor
        # Keyed by version: a narrow tensor the model writes into is widened again after the write.
        key = (id(tensor), 0 if tensor.is_inference() else tensor._version)
        if key not in self._made:
            self._made[key] = (tensor, tensor.to(target))
        return self._made[key][1]
