"""The rate at which the device reads memory and writes nothing: the limit of sums and losses, above that of a copy."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from hotswap.optimizer.device_clock import capture

_BYTES = 512 * 2**20


@triton.jit
def _read(x_ptr, out_ptr, size, BLOCK: tl.constexpr, DEEP: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    at = tl.arange(0, DEEP)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros([DEEP, BLOCK], tl.float32)
    for first in tl.range(tl.program_id(0) * BLOCK * DEEP, size, tl.num_programs(0) * BLOCK * DEEP):
        total += tl.load(x_ptr + first + at, mask=first + at < size, other=0.0, eviction_policy="evict_first")
    tl.store(out_ptr + tl.program_id(0), tl.sum(tl.sum(total, axis=1), axis=0))


def read_gb_s(device: str) -> float:
    """Return the best rate of a few ways to read half a GiB, in 1e9 bytes a second."""
    sets = [[torch.rand(_BYTES // 4, device=device)] for _ in range(2)]
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    best = float("inf")
    for each, deep, warps in ((8, 4, 8), (4, 4, 8), (8, 8, 4), (16, 2, 4)):
        programs = processors * each

        def read(x: torch.Tensor, programs: int = programs, deep: int = deep, warps: int = warps) -> torch.Tensor:
            out = torch.empty(programs, device=x.device)
            _read[(programs,)](x, out, x.numel(), BLOCK=128 * warps, DEEP=deep, num_warps=warps)
            return out

        replay = capture(read, sets)
        best = min([best, *(replay.block(0.03) for _ in range(3))])
    return _BYTES / (best * 1e3)
