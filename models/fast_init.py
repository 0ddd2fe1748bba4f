"""Make random weights fast: large normal and uniform fills are tiled from one small random block.

Weights made up for a benchmark need the right distribution, not a billion independent draws: Llama-3.2-1B in bf16 takes
2 cores 19.5 s to build with torch's own, 1.2 to 1.7 s here. Everything else, buffers such as rotary tables included, is
computed as the model computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# A prime: no row length divides it, so rows of a tiled matrix differ (2**20 would repeat each 512 rows of 2048).
BLOCK = 1_048_583
# Fills up to this size are drawn as usual.
SMALL = 1 << 16
# Prime as well: where the tiling of each next tensor begins, so that equal layers do not get equal weights.
STEP = 611_953

_aten = torch.ops.aten


class FastInit(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its __init_subclass__ is untyped
    """While entered, large `normal_` and `uniform_` fills on a CPU cost a copy; so does what is made of them.

    The stream of draws is not torch's own: equal seeds give equal weights only among builds under this mode.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._blocks: dict[str, torch.Tensor] = {}
        self._start = 0
        self.tiled = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        filler = _FILLERS.get(func)
        if filler is not None and _is_large_cpu_fill(args[0], kwargs or {}):
            filler(self, *args)
            return args[0]
        return func(*args, **(kwargs or {}))

    def tile(
        self, target: torch.Tensor, kind: str, draw: Callable[[torch.Tensor], Any], scale: float, shift: float
    ) -> None:
        """Fill `target` with `block * scale + shift`, the block of `kind` being drawn once."""
        if kind not in self._blocks:
            block = torch.empty(BLOCK)
            draw(block)
            self._blocks[kind] = block
        values = (self._blocks[kind] * scale + shift).to(target.dtype)
        flat = target.view(-1)
        start = self._start
        head = min(BLOCK - start, flat.numel())
        flat[:head].copy_(values[start : start + head])
        rest = flat[head:]
        whole = rest.numel() // BLOCK
        rest[: whole * BLOCK].view(whole, BLOCK).copy_(values)
        tail = rest[whole * BLOCK :]
        tail.copy_(values[: tail.numel()])
        self._start = (start + STEP) % BLOCK
        self.tiled += 1


def _is_large_cpu_fill(target: Any, kwargs: Mapping[str, Any]) -> bool:
    return (
        isinstance(target, torch.Tensor)
        and target.device.type == "cpu"
        and target.is_floating_point()
        and target.is_contiguous()
        and target.numel() > SMALL
        # A generator of the caller's promises a certain stream.
        and kwargs.get("generator") is None
    )


def _normal(mode: FastInit, target: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> None:
    mode.tile(target, "normal", lambda block: block.normal_(), std, mean)


def _uniform(mode: FastInit, target: torch.Tensor, low: float = 0.0, high: float = 1.0) -> None:
    # bf16 has 8 bits: rounding may reach `high` itself, which uniform_ excludes; initialisation does not mind.
    mode.tile(target, "uniform", lambda block: block.uniform_(), high - low, low)


_FILLERS: dict[Any, Callable[..., None]] = {_aten.normal_.default: _normal, _aten.uniform_.default: _uniform}
