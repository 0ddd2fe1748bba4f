"""Time the template search's CPU kernels against eager and Inductor on four regions every transformer has.

usage: python benchmarks/cpu_kernels.py [--rows 512] [--width 2048] [--seconds 40] [--only NAME] [--out FILE]

Each region is a small module that goes the whole way: captured, cut out, searched, judged. Writes rows of
(task, shape, dtype, arm, us, interval of the ratio to ours, share of the copy limit) with the environment.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hotswap.extractor.capture import capture
from hotswap.extractor.extract import extract
from hotswap.extractor.load_task import load_task
from hotswap.extractor.task import task_folder
from hotswap.models.environment import environment
from hotswap.models.workload import Call, Workload
from hotswap.optimizer.judge import Judge
from hotswap.optimizer.ledger import Ledger
from hotswap.optimizer.proposers.template import Template
from hotswap.optimizer.search import search
from hotswap.profiler.record import record

RESULTS = Path(__file__).parent / "results"


class RMSNorm(nn.Module):
    """As transformers writes it: fp32 inside, rounded before the weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class ResidualRMSNorm(RMSNorm):
    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        stream = x + residual
        return stream, super().forward(stream)


class SwiGLU(nn.Module):
    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(gate) * up


class MaskedSoftmax(nn.Module):
    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax((scores + mask).float(), -1).to(scores.dtype)


def regions(rows: int, width: int, dtype: torch.dtype) -> Iterator[tuple[str, nn.Module, tuple[torch.Tensor, ...]]]:
    """Yield each region as (name, module, inputs) with random inputs of the given shape."""
    torch.manual_seed(0)
    x, y = torch.randn(rows, width).to(dtype), torch.randn(rows, width).to(dtype)
    mask = torch.where(torch.rand(1, width) < 0.1, float("-inf"), 0.0).to(dtype)
    yield "rmsnorm", RMSNorm(width).to(dtype), (x,)
    yield "swiglu", SwiGLU(), (x, y)
    yield "masked softmax", MaskedSoftmax(), (x, mask)
    yield "residual+rmsnorm", ResidualRMSNorm(width).to(dtype), (x, y)


def measure(name: str, module: nn.Module, inputs: tuple[torch.Tensor, ...], seconds: float) -> list[dict[str, Any]]:
    """Return one row an arm for a region: ours is absent where no kernel was kept."""
    workload = Workload(module.eval(), (Call(inputs),))
    profile = record(workload)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (task,) = extract(name, capture(workload), profile, folder / "tasks", top=1).tasks
        home = task_folder(folder / "tasks", 0, task)
        loaded = load_task(home)
        with Ledger(folder / "ledger.db") as ledger, Judge(home) as judge:
            winner = search(home, ledger=ledger, judge=judge, proposers=[Template(loaded)], seconds=seconds)
            baseline = judge.baseline()
    race = winner.races[0] if winner.races else baseline
    # The judge's input sets are together larger than the last-level cache: what a copy through memory takes.
    limit_us = task.bytes / (profile.limits.copy_gb_s * 1e3)
    print(f"{name:18s} {inputs[0].dtype} {winner.choice}: {winner.reason}", flush=True)
    return [
        {
            "task": name,
            "shape": list(inputs[0].shape),
            "dtype": str(inputs[0].dtype).removeprefix("torch."),
            "arm": "ours" if arm.name == "candidate" else arm.name,
            "us": arm.median_us,
            "samples_us": list(arm.samples_us),
            "ours_faster": race.speedup[arm.name].to_dict() if arm.name in race.speedup and winner.races else None,
            "share_of_limit": limit_us / arm.median_us,
            "cache": race.cache,
            "kept": winner.choice,
        }
        for arm in race.arms
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--seconds", type=float, default=40.0, help="search budget for each region and dtype")
    parser.add_argument("--only", help="one region by name")
    parser.add_argument("--out", type=Path, default=RESULTS / "cpu-kernels.json")
    asked = parser.parse_args()
    rows = []
    for dtype in (torch.bfloat16, torch.float32):
        for name, module, inputs in regions(asked.rows, asked.width, dtype):
            if asked.only in (None, name):
                torch._dynamo.reset()
                rows += measure(name, module, inputs, asked.seconds)
    made = {
        "suite": "cpu_kernels",
        "measured_at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "environment": environment(),
        "rows": rows,
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(made, indent=1) + "\n")
    print(asked.out)


if __name__ == "__main__":
    main()
