"""What this machine's CPU says of itself. Reads the operating system's description, measures nothing."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

# The instruction sets that decide which kernels can run or how fast they are.
FLAGS_THAT_MATTER = (
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
    "bf16",
    "svebf16",
)
_NATIVE_BF16 = frozenset({"amx_bf16", "avx512_bf16", "bf16", "svebf16"})


@functools.cache
def cpu_name() -> str:
    """Return the CPU's model name, or its architecture where the system does not tell."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the CPU's feature flags; empty where the system does not list them (then nothing is assumed)."""
    return frozenset((_cpuinfo("flags") or _cpuinfo("Features")).split())


def flags_that_matter(flags: frozenset[str]) -> tuple[str, ...]:
    return tuple(flag for flag in FLAGS_THAT_MATTER if flag in flags)


def native_bf16(flags: frozenset[str]) -> bool:
    """Tell whether a CPU with `flags` multiplies bf16 in hardware; without it bf16 is slower than fp32."""
    return bool(flags & _NATIVE_BF16)


def _cpuinfo(key: str) -> str:
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
