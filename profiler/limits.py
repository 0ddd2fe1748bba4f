"""What a device can do, measured on it once and kept on disk: copy rates, matmul rates, launch latency, cache size.

Rates are the best seen, not the median: a floor is the least time that is possible, and interference only slows.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from ..models.cache import cache_dir
from ..models.errors import EnvironmentMissing, RecordError
from ..models.machine import cpu_name
from .recording import Limits

_MATMUL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LARGE_BYTES = 256 * 2**20
_CURVE_BYTES = tuple(2**power for power in range(16, 27))
# Two rounds of about 1.1 s on two cores: 0.3 s of large copies, 0.15 s of small ones, 0.2 s a dtype.
_COPY_SECONDS, _CURVE_SECONDS, _MATMUL_SECONDS = 0.3, 0.012, 0.2


def measure(device: str, *, refresh: bool = False) -> Limits:
    """Return what `device` can do, from the cache where these versions and threads were measured before.

    refresh: measure again and keep the best of both, for instance after a first measurement on a busy machine.
    """
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise EnvironmentMissing(
            f"{device}: no CUDA device is usable here; expected one, torch sees none; use --device cpu"
        )
    kept = cache_dir() / "limits" / f"{_key(where)}.json"
    known = _known(kept)
    if known is not None and not refresh:
        return known
    limits = _measure(where) if known is None else _best(known, _measure(where))
    limits.save(kept)
    return limits


def _known(kept: Path) -> Limits | None:
    try:
        return Limits.load(kept) if kept.exists() else None
    except RecordError:  # damaged, or of another version: it is only a cache
        return None


def last_level_cache_bytes(device: torch.device, sysfs: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return the size of the device's last-level cache, 0 where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    levels: dict[int, int] = {}
    for index in sysfs.glob("index*"):
        try:
            kind, level = (index / "type").read_text().strip(), int((index / "level").read_text())
            size = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1:], 1)
            levels[level] = int(size.rstrip("KMG")) * unit
    return levels[max(levels)] if levels else 0


def _key(device: torch.device) -> str:
    parts = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "index": str(device),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "fp32": torch.get_float32_matmul_precision(),
        "record": sorted(Limits.__dataclass_fields__),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _measure(device: torch.device) -> Limits:
    # Two rounds, the best of both: a burst of other work then spoils at most one of them.
    return _best(_measure_round(device), _measure_round(device))


def _best(one: Limits, other: Limits) -> Limits:
    """Return the best of two measurements of one device, figure by figure."""
    dtypes = one.matmul_tflop_s.keys() | other.matmul_tflop_s.keys()
    return replace(
        other,
        copy_gb_s=max(one.copy_gb_s, other.copy_gb_s),
        matmul_tflop_s={
            d: max(one.matmul_tflop_s.get(d, 0.0), other.matmul_tflop_s.get(d, 0.0)) for d in sorted(dtypes)
        },
        launch_us=min(one.launch_us, other.launch_us),
        copy_curve=tuple(
            (size, max(rate, rival)) for (size, rate), (_, rival) in zip(one.copy_curve, other.copy_curve, strict=True)
        ),
    )


def _measure_round(device: torch.device) -> Limits:
    rates = {str(d).removeprefix("torch."): _matmul_tflop_s(device, d) for d in _MATMUL_DTYPES}
    return Limits(
        device=str(device),
        copy_gb_s=_copy_gb_s(device, _LARGE_BYTES, _COPY_SECONDS),
        copy_curve=tuple((2 * size, _copy_gb_s(device, size, _CURVE_SECONDS)) for size in _CURVE_BYTES),
        matmul_tflop_s={name: rate for name, rate in rates.items() if rate is not None},
        launch_us=_launch_us(device),
        cache_bytes=last_level_cache_bytes(device),
        measured_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def _copy_gb_s(device: torch.device, size: int, seconds: float) -> float:
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source).zero_()  # touched here: page faults are not part of the rate
    return 2 * size / (_least_us(device, lambda: target.copy_(source), seconds) * 1e3)


def _matmul_tflop_s(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the best rate of square matmuls, None where the dtype does not work; sizes grow while they are quick."""
    best = None
    for size in (256, 512, 1024, 2048, 4096, 8192):
        try:
            a = torch.ones(size, size, dtype=dtype, device=device)
            us = _least_us(device, lambda a=a: a @ a, _MATMUL_SECONDS / 4)  # type: ignore[misc]
        except RuntimeError:  # torch's answer where a device has no kernel for the dtype
            return best
        rate = 2 * size**3 / (us * 1e6)
        best = max(best or 0.0, rate)
        if us * 8 > _MATMUL_SECONDS * 1e6 / 4:
            break
    return best


def _launch_us(device: torch.device) -> float:
    """Host time to put one trivial op on the device; few enough that a device's queue does not fill."""
    x = torch.zeros(1, device=device)
    best = float("inf")
    for _ in range(20):
        _synchronize(device)
        start = time.perf_counter()
        for _ in range(100):
            x.add_(1)
        best = min(best, (time.perf_counter() - start) * 1e4)
    return best


def _least_us(device: torch.device, work: Callable[[], object], seconds: float) -> float:
    """Return the least time of `work` within about `seconds`, device time on a GPU; at least three runs."""
    best, runs = float("inf"), 0
    work()
    _synchronize(device)
    until = time.perf_counter() + seconds
    while runs < 3 or time.perf_counter() < until:
        best = min(best, _once_us(device, work))
        runs += 1
    return best


def _once_us(device: torch.device, work: Callable[[], object]) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1e6
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
