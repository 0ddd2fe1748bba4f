"""Decide whether inputs lie in the domain a kernel was verified for, and say why not.

Reasons name the bound and not the offending size: they are keys of counters, and lengths are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from ..optimizer.winner import Domain, InputDomain


def outside(domain: Domain, inputs: Sequence[torch.Tensor], contiguous: frozenset[int] = frozenset()) -> str | None:
    """Return why `inputs` are outside `domain`, None when inside. contiguous: positions the kernel needs dense."""
    if len(inputs) != len(domain.inputs):
        return f"{len(inputs)} inputs, expected {len(domain.inputs)}"
    device = domain.device.split(":")[0]
    for position, (tensor, expected) in enumerate(zip(inputs, domain.inputs, strict=True)):
        if tensor.device.type != device:
            return f"device {tensor.device.type}, expected {device}"
        reason = _input_outside(tensor, expected, position in contiguous)
        if reason is not None:
            return f"input {position}: {reason}"
    return _sizes_outside(domain, inputs)


def _input_outside(tensor: torch.Tensor, expected: InputDomain, contiguous: bool) -> str | None:
    if str(tensor.dtype).removeprefix("torch.") != expected.dtype.removeprefix("torch."):
        return f"dtype {str(tensor.dtype).removeprefix('torch.')}, expected {expected.dtype.removeprefix('torch.')}"
    if tensor.dim() != expected.rank:
        return f"rank {tensor.dim()}, expected {expected.rank}"
    if tensor.layout is not torch.strided:
        return f"layout {tensor.layout}, expected strided"
    if contiguous and not tensor.is_contiguous():
        return "not contiguous, which the kernel needs"
    if not laid_out(tensor.shape, tensor.stride(), expected.layout):
        return f"strides are not in the order {expected.layout}"
    return None


def laid_out(shape: Sequence[int], stride: Sequence[int], layout: str) -> bool:
    """Whether strides fall in the order of dims `layout` names ("0,2,1": outermost first, "any", "contiguous")."""
    if layout == "any":
        return True
    if layout == "contiguous":
        layout = ",".join(str(d) for d in range(len(shape)))
        expected = 1
        for size, step in zip(reversed(shape), reversed(stride), strict=True):
            if size != 1 and step != expected:
                return False
            expected *= size
        return True
    # A dim of size 1 has no stride that means anything.
    steps = [stride[d] for d in (int(word) for word in layout.split(",") if word) if shape[d] != 1]
    return all(a >= b for a, b in pairwise(steps))


def _sizes_outside(domain: Domain, inputs: Sequence[torch.Tensor]) -> str | None:
    for symbol, (low, high) in zip(domain.symbols, domain.sizes, strict=True):
        sizes = {inputs[i].shape[d] for i, d in symbol}
        if len(sizes) != 1:
            return f"sizes differ at {_places(symbol)}, expected equal"
        if not low <= sizes.pop() <= high:
            return f"size at {_places(symbol[:1])} not in {low} to {high}"
    for i, d, size in domain.fixed:
        if inputs[i].shape[d] != size:
            return f"size at {_places(((i, d),))} not {size}"
    return None


def _places(symbol: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"input {i} dim {d}" for i, d in symbol)
