"""The arms a row is timed against: eager code, the fused torch op, torch.compile, Liger, published starter kernels."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotswap.benchmarks.kernels_kit.rows import Row

MODES = {"torch.compile": None, "max-autotune-no-cudagraphs": "max-autotune-no-cudagraphs"}
ALL = ("eager", "fused torch op", *MODES, "liger", "starter")


@dataclass(frozen=True)
class Rival:
    """One arm. call: None where there is none, with the reason. ready_s: what making and compiling it took.

    breach: how its outputs are not laid out as the row asks, None where they are. Such an arm is shown, and no rival.
    """

    name: str
    call: Callable[..., tuple[Tensor, ...]] | None
    reason: str | None = None
    ready_s: float = 0.0
    breach: str | None = None


def rivals(row: Row, inputs: list[Tensor], names: tuple[str, ...], starters: Path | None) -> list[Rival]:
    """Return the arms of `names` that exist for the row, each run once on `inputs` and right to a few roundings."""
    torch._dynamo.reset()
    wanted = tuple(row.family.reference(*inputs))
    found = []
    for name in names:
        started = time.perf_counter()
        try:
            call = _made(name, row, starters)
            if call is None:
                continue
            got = tuple(call(*inputs))
            torch.cuda.synchronize() if inputs[0].is_cuda else None
        except (
            Exception
        ) as error:  # any library's code runs here: an arm that fails is a row of its own, with its reason
            found.append(Rival(name, None, f"{type(error).__name__}: {str(error).strip().splitlines()[0:1]}"))
            continue
        problem = unlike(got, wanted)
        breach = None if problem else not_as_asked(row, got)
        found.append(Rival(name, None if problem else call, problem, time.perf_counter() - started, breach))
    return found


def not_as_asked(row: Row, got: Sequence[Tensor]) -> str | None:
    """Return what is wrong with the layout of outputs in a row that asks for contiguous ones, None where nothing is."""
    if not row.family.dense:
        return None
    loose = [(number, t.stride()) for number, t in enumerate(got) if not t.is_contiguous()]
    if len(got) == 1 and loose:
        return f"its output has strides {loose[0][1]}"
    return "; ".join(f"its output {number} has strides {strides}" for number, strides in loose) or None


def unlike(got: tuple[Any, ...], wanted: tuple[Tensor, ...]) -> str | None:
    """Return how outputs differ from eager's by more than rounding, None where they do not; in norm, chunk by chunk."""
    if len(got) != len(wanted):
        return f"{len(got)} outputs, expected {len(wanted)}"
    for number, (a, b) in enumerate(zip(got, wanted, strict=True)):
        # A loss in fp32 where eager gives half is more exact, not wrong.
        if a.shape != b.shape or a.dtype not in (b.dtype, torch.float32):
            return f"output {number}: {a.dtype} {tuple(a.shape)}, expected {b.dtype} {tuple(b.shape)}"
        error, size = _distance(a, b)
        allowed = 2 * torch.finfo(b.dtype).eps
        if not error <= allowed * size:
            return f"output {number}: off by {error / size if size else error:.3g} of its norm, at most {allowed:.3g}"
    return None


def _distance(a: Tensor, b: Tensor) -> tuple[float, float]:
    error = size = 0.0
    chunks = max(1, b.numel() // 2**26)
    for x, y in zip(a.reshape(-1).chunk(chunks), b.reshape(-1).chunk(chunks), strict=True):
        error += float((x.float() - y.float()).square().sum(dtype=torch.float64))
        size += float(y.float().square().sum(dtype=torch.float64))
    return error**0.5, size**0.5


def _made(name: str, row: Row, starters: Path | None) -> Callable[..., tuple[Tensor, ...]] | None:
    family = row.family
    if name == "eager":
        return family.reference
    if name == "fused torch op":
        return family.fused
    if name in MODES:
        return torch.compile(family.reference, dynamic=False, fullgraph=True, mode=MODES[name])
    if name == "liger":
        return family.liger(_liger_ops) if family.liger and importlib.util.find_spec("liger_kernel") else None
    if starters is None or family.starter is None:
        return None
    return _starter(starters, family.starter)


def _liger_ops(module: str) -> Any:
    return importlib.import_module(f"liger_kernel.ops.{module}")


def _starter(folder: Path, name: str) -> Callable[..., tuple[Tensor, ...]] | None:
    for path in (folder / f"{name}.py", folder / "kernels" / f"{name}.py"):
        if path.exists():
            spec = importlib.util.spec_from_file_location(f"starter_{name}", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
            return lambda *inputs: (module.kernel_fn(*inputs),)
    return None
