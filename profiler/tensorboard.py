"""Write a profile as a TensorBoard log directory: traces where its profiler plugin looks, scalars for its dashboard."""

from __future__ import annotations

import gzip
import re
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from ..models.errors import ResourceExhausted
from .recording import Profile
from .table import short


def write_tensorboard(profile: Profile, traces: Iterable[Path], folder: Path) -> str | None:
    """Write the log directory `folder`; return None, or the line to show when scalars were left out and why.

    traces: Chrome traces, .json or .json.gz. torch-tb-profiler finds them by the ending `.pt.trace.json.gz`.
    """
    stamp = time.time_ns() // 10**6
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number, trace in enumerate(traces):
            raw = trace.read_bytes()
            packed = raw if raw[:2] == b"\x1f\x8b" else gzip.compress(raw, 6)
            (folder / f"{_worker(profile.model)}.{stamp + number}.pt.trace.json.gz").write_bytes(packed)
    except OSError as error:
        raise ResourceExhausted(
            f"{folder}: cannot be written ({error.strerror}); choose another --tensorboard"
        ) from error
    return _write_scalars(profile, folder)


def _write_scalars(profile: Profile, folder: Path) -> str | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return f"{folder}: traces only, no scalars: tensorboard is not installed; pip install 'hotswap[tensorboard]'"
    with SummaryWriter(str(folder)) as writer:
        for number, call in enumerate(profile.calls):
            figures = {
                "step_ms": call.step_us / 1e3,
                "coverage": call.coverage,
                "busy_share": call.busy_share,
                "launches": float(call.launches),
                "peak_mib": call.peak_bytes / 2**20,
            }
            by_op: dict[str, float] = defaultdict(float)
            for row in call.rows:
                by_op[f"self_ms/{short(row.op)}"] += row.self_us / 1e3
            for name, value in {**figures, **by_op}.items():
                writer.add_scalar(f"{call.name}/{name}", value, number)
    return None


def _worker(model: str) -> str:
    """The plugin takes what stands before the first dot for the worker's name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", Path(model).name) or "model"
