"""Verdicts and acceptances an hour of the judge on C++ kernels: good, slow, wrong and crashing ones.

    python benchmarks/judge_throughput.py [--minutes 5] [--rows 512] [--width 2048] [--out FILE]

A verdict is every correctness stage plus screening; an acceptance is the full race in a clean process. The mix: of
twelve candidates six are right and near the best, two right and slow, two wrong late, one wrong at once, one crashes.
Run it on a machine that does nothing else. Writes benchmarks/results/judge-throughput.json.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from hotswap.extractor.task import ShapeCase, Task, TensorSpec
from hotswap.models.environment import environment
from hotswap.optimizer.judge import Judge
from hotswap.optimizer.verdict import Verdict

REFERENCE = """
import torch

def reference(x, weight):
    wide = x.to(torch.float32)
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (weight * scaled.to(x.dtype),)
"""
KERNEL = r'''
import ctypes
import torch
from hotswap.optimizer.native import compile_cpp
CONSTRAINTS = {"contiguous": ["x", "weight"]}
lib = compile_cpp(r"""
#include <cmath>
#include <cstdint>
#include <cstdlib>
extern "C" void norm(const float* x, const float* w, float* out, int64_t rows, int64_t n) {
    CRASH
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; ++r) {
        const float* row = x + r * n;
        float sum[LANES] = {0};
        for (int64_t i = 0; i + LANES <= n; i += LANES)
            for (int64_t k = 0; k < LANES; ++k) sum[k] += row[i + k] * row[i + k];
        float total = 0;
        for (int64_t k = 0; k < LANES; ++k) total += sum[k];
        for (int64_t i = n / LANES * LANES; i < n; ++i) total += row[i] * row[i];
        float f = 1.0f / std::sqrt(total / n + EPS);
        for (int64_t t = 0; t < REPEAT; ++t)
            for (int64_t i = 0; i < n; ++i) out[r * n + i] = row[i] * f * w[i];
    }
}
""")
lib.norm.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2
def kernel(x, weight):
    out = torch.empty_like(x)
    LATE
    lib.norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1])
    return out
# variant NUMBER
'''
KINDS: tuple[tuple[str, dict[str, str]], ...] = (
    ("good", {"LANES": "8"}), ("wrong", {"EPS": "1e-2f"}), ("good", {"LANES": "16"}),
    ("slow", {"REPEAT": "40"}), ("good", {"LANES": "32"}), ("wrong late", {"LATE": "x = x.clamp(-8, 8)"}),
    ("good", {"LANES": "64"}), ("crashing", {"CRASH": "std::abort();"}), ("good", {"LANES": "4"}),
    ("slow", {"REPEAT": "4"}), ("good", {"LANES": "24"}), ("wrong late", {"LATE": "if x.shape[0] == 1: x = x + 1"}),
)  # fmt: skip
PLAIN = {"LANES": "16", "EPS": "1e-6f", "REPEAT": "1", "CRASH": "", "LATE": "pass"}


def candidate(number: int) -> tuple[str, str]:
    """Return the kind and source of the number-th candidate; no two sources are equal, so that each is compiled."""
    kind, changes = KINDS[number % len(KINDS)]
    source = KERNEL
    for word, text in (PLAIN | changes).items():
        source = source.replace(word, text)
    return kind, source.replace("#include <cmath>", f"// {number}\n#include <cmath>").replace("NUMBER", str(number))


def write_task(folder: Path, rows: int, width: int) -> Path:
    """Write an fp32 RMSNorm as a task folder."""
    draws = torch.Generator().manual_seed(3)
    inputs = {"x": torch.randn(rows, width, generator=draws), "weight": 1 + torch.randn(width, generator=draws) / 10}
    folder.mkdir(parents=True)
    (folder / "reference.py").write_text(REFERENCE)
    specs, kept = [], {}
    for name, tensor in inputs.items():
        kept[f"case0.{name}"] = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).clone()
        facts = [f.item() for f in (tensor.min(), tensor.max(), tensor.mean(), tensor.std())]
        role = "weight" if name == "weight" else "activation"
        specs.append(
            TensorSpec(name, tuple(tensor.shape), tensor.stride(), 0, "float32", role, f"case0.{name}", None, *facts)
        )
    save_file(kept, folder / "inputs.safetensors")
    Task(
        name="rmsnorm", fingerprint="0" * 16, kind="memory", device="cpu", ops=("aten.mul",), inputs=tuple(inputs),
        outputs=1, cases=(ShapeCase("case0", tuple(specs), 1, 1.0, 100.0),), sites=(), eager_us=100.0, floor_us=10.0,
        share=0.1, ceiling=1.1, size_symbols=(((0, 0),), ((0, 1), (1, 0))),
    ).save(folder / "task.json")  # fmt: skip
    return folder


def measure(folder: Path, minutes: float) -> dict[str, object]:
    """Return the figures of a judge kept busy for so many minutes, its start apart."""
    stages: collections.Counter[str] = collections.Counter()
    ended: collections.Counter[str] = collections.Counter()
    screened = accepted_s = 0.0
    acceptances = verdicts = quick = 0
    started = time.monotonic()
    with Judge(folder) as judge:
        judge.baseline()
        start_s = time.monotonic() - started
        began = time.monotonic()
        while time.monotonic() - began < 60 * minutes or verdicts < len(KINDS):
            kind, source = candidate(verdicts)
            before = time.monotonic()
            verdict = judge.verdict(source)
            took = time.monotonic() - before
            verdicts += 1
            depth = _depth(verdict)
            if depth.startswith("acceptance"):
                acceptances, accepted_s = acceptances + 1, accepted_s + took
            elif verdict.accepted:
                screened += took
            else:
                quick += 1
            ended[f"{kind}: {depth or verdict.stage}"] += 1
            stages.update({s.stage: s.seconds for s in verdict.stages})  # type: ignore[arg-type]
        hours = (time.monotonic() - began) / 3600
        isolation = judge.hall.isolation
    full = verdicts - quick
    return {
        "verdicts_an_hour": verdicts / hours, "acceptances_an_hour": acceptances / hours,
        "verdicts": verdicts, "acceptances": acceptances, "rejected_before_timing": quick, "minutes": hours * 60,
        "seconds_to_first_verdict": start_s,
        "seconds_a_screened_verdict": screened / (full - acceptances) if full > acceptances else None,
        "seconds_an_accepted_verdict": accepted_s / acceptances if acceptances else None,
        "seconds_in_stages": dict(stages), "ended": dict(sorted(ended.items())), "isolation": isolation,
    }  # fmt: skip


def _depth(verdict: Verdict) -> str:
    return verdict.stages[-1].evidence.get("depth", "") if verdict.accepted else ""


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "judge-throughput.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(write_task(Path(scratch) / "rmsnorm", args.rows, args.width), args.minutes)
    figures |= {"task": f"rmsnorm fp32 ({args.rows}, {args.width})", "cores": os.cpu_count()}
    args.out.write_text(json.dumps(figures | {"environment": environment()}, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
