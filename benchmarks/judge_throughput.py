"""Verdicts and acceptances an hour of the judge on C++ or Triton kernels: good, slow, wrong and crashing ones.

    python benchmarks/judge_throughput.py [--device cpu|cuda] [--minutes 5] [--within SECONDS] [--rows N] [--width N]

A verdict is every correctness stage plus screening; an acceptance is the full race in a clean process. The mix: of
twelve candidates six are right and near the best, two right and slow, two wrong late, one wrong at once, one crashes.
Run it on a machine that does nothing else. `--within` bounds the whole run, the judge's start included. Writes
benchmarks/results/judge-throughput.json, on a device judge-throughput-NAME.json.
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
TRITON = """
import torch
import triton
import triton.language as tl

@triton.jit
def norm(x, weight, out, width, row, column, BLOCK: tl.constexpr):
    here = tl.arange(0, BLOCK)
    inside = here < width
    start = tl.program_id(0).to(tl.int64)
    value = tl.load(x + start * row + here * column, mask=inside, other=0.0).to(tl.float32)
    LATE
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + EPS)
    gain = tl.load(weight + here, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + CRASH + start * width + here, (value * scale * gain).to(out.dtype.element_ty), mask=inside)

def kernel(x, weight):
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, width = x.shape
    if out.numel():
        block = triton.next_power_of_2(width)
        for _ in range(REPEAT):
            norm[(rows,)](x, weight.contiguous(), out, width, *x.stride(), BLOCK=block, num_warps=LANES)
    return out
# variant NUMBER
"""
Kinds = tuple[tuple[str, dict[str, str]], ...]
KINDS: Kinds = (
    ("good", {"LANES": "8"}), ("wrong", {"EPS": "1e-2f"}), ("good", {"LANES": "16"}),
    ("slow", {"REPEAT": "40"}), ("good", {"LANES": "32"}), ("wrong late", {"LATE": "x = x.clamp(-8, 8)"}),
    ("good", {"LANES": "64"}), ("crashing", {"CRASH": "std::abort();"}), ("good", {"LANES": "4"}),
    ("slow", {"REPEAT": "4"}), ("good", {"LANES": "24"}), ("wrong late", {"LATE": "if x.shape[0] == 1: x = x + 1"}),
)  # fmt: skip
TRITON_KINDS: Kinds = (
    ("good", {"LANES": "4"}), ("wrong", {"EPS": "0.5"}), ("good", {"LANES": "8"}),
    ("slow", {"REPEAT": "40"}), ("good", {"LANES": "2"}),
    ("wrong late", {"LATE": "value = tl.minimum(tl.maximum(value, -8.0), 8.0)"}), ("good", {"LANES": "16"}),
    ("crashing", {"CRASH": "(start + (1 << 40))"}), ("good", {"LANES": "4"}), ("slow", {"REPEAT": "4"}),
    ("good", {"LANES": "8"}), ("wrong late", {"LATE": "value += tl.where(tl.num_programs(0) == 1, 1.0, 0.0)"}),
)  # fmt: skip
PLAIN = {"LANES": "16", "EPS": "1e-6f", "REPEAT": "1", "CRASH": "", "LATE": "pass"}
TRITON_PLAIN = {"LANES": "4", "EPS": "1e-6", "REPEAT": "1", "CRASH": "0", "LATE": "value += 0.0"}


def candidate(number: int, device: str) -> tuple[str, str]:
    """Return the kind and source of the number-th candidate; no two sources are equal, so that each is compiled."""
    template, plain, kinds = (KERNEL, PLAIN, KINDS) if device == "cpu" else (TRITON, TRITON_PLAIN, TRITON_KINDS)
    kind, changes = kinds[number % len(kinds)]
    source = template
    for word, text in (plain | changes).items():
        source = source.replace(word, text)
    return kind, source.replace("#include <cmath>", f"// {number}\n#include <cmath>").replace("NUMBER", str(number))


def write_task(folder: Path, rows: int, width: int, device: str = "cpu") -> Path:
    """Write an RMSNorm as a task folder: fp32 on a CPU, bf16 on a device."""
    draws = torch.Generator().manual_seed(3)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    x, weight = torch.randn(rows, width, generator=draws), 1 + torch.randn(width, generator=draws) / 10
    inputs = {"x": x.to(dtype), "weight": weight.to(dtype)}
    folder.mkdir(parents=True)
    (folder / "reference.py").write_text(REFERENCE)
    specs, kept = [], {}
    for name, tensor in inputs.items():
        key = f"case0.{name}"
        kept[key] = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).clone()
        wide = tensor.double()
        facts = [f.item() for f in (wide.min(), wide.max(), wide.mean(), wide.std())]
        role = "weight" if name == "weight" else "activation"
        kind = str(dtype).removeprefix("torch.")
        specs.append(TensorSpec(name, tuple(tensor.shape), tensor.stride(), 0, kind, role, key, None, *facts))
    save_file(kept, folder / "inputs.safetensors")
    Task(
        name="rmsnorm", fingerprint="0" * 16, kind="memory", device=device, ops=("aten.mul",), inputs=tuple(inputs),
        outputs=1, cases=(ShapeCase("case0", tuple(specs), 1, 1.0, 100.0),), sites=(), eager_us=100.0, floor_us=10.0,
        share=0.1, ceiling=1.1, size_symbols=(((0, 0),), ((0, 1), (1, 0))),
    ).save(folder / "task.json")  # fmt: skip
    return folder


def measure(folder: Path, device: str, minutes: float, within_s: float) -> dict[str, object]:
    """Return the figures of a judge kept busy for so many minutes, its start apart, and no longer than `within_s`."""
    stages: collections.Counter[str] = collections.Counter()
    ended: collections.Counter[str] = collections.Counter()
    took: dict[str, list[float]] = {"acceptance": [], "screening": [], "quick": []}
    verdicts, longest = 0, 0.0
    started = time.monotonic()
    with Judge(folder) as judge:
        judge.baseline()
        began = time.monotonic()
        end = min(began + 60 * minutes, started + within_s)
        while not verdicts or time.monotonic() + longest < end:
            kind, source = candidate(verdicts, device)
            before = time.monotonic()
            verdict = judge.verdict(source)
            seconds = time.monotonic() - before
            verdicts, longest = verdicts + 1, max(longest, seconds)
            depth = verdict.stages[-1].evidence.get("depth", "") if verdict.accepted else ""
            took[depth.partition(",")[0] or "quick"].append(seconds)
            ended[f"{kind}: {depth or verdict.stage}"] += 1
            stages.update({s.stage: s.seconds for s in verdict.stages})  # type: ignore[arg-type]
            stages.update(_parts_of_timing(verdict))  # type: ignore[arg-type]
        hours = (time.monotonic() - began) / 3600
        isolation = judge.hall.isolation
    return {
        "verdicts_an_hour": verdicts / hours, "acceptances_an_hour": len(took["acceptance"]) / hours,
        "verdicts": verdicts, "acceptances": len(took["acceptance"]), "rejected": len(took["quick"]),
        "minutes": hours * 60, "seconds_to_first_verdict": began - started,
        "seconds_a_screened_verdict": _mean(took["screening"]), "seconds_a_rejection": _mean(took["quick"]),
        "seconds_an_accepted_verdict": _mean(took["acceptance"]), "longest_verdict_s": longest,
        "seconds_in_stages": dict(stages), "ended": dict(sorted(ended.items())), "isolation": isolation,
    }  # fmt: skip


def _parts_of_timing(verdict: Verdict) -> dict[str, float]:
    """Return the seconds of each part of the timing stage; empty where it was not passed."""
    told = verdict.stages[-1].evidence.get("seconds", "")
    return {f"timing: {part.rpartition(' ')[0]}": float(part.rpartition(" ")[2]) for part in told.split(", ") if part}


def _mean(seconds: list[float]) -> float | None:
    return sum(seconds) / len(seconds) if seconds else None


def _default_out(device: str) -> Path:
    name = "" if device == "cpu" else "-" + "-".join(torch.cuda.get_device_name().lower().split())
    return Path(__file__).parent / "results" / f"judge-throughput{name}.json"


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds the whole may take")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    on_cpu = args.device == "cpu"
    rows, width = args.rows or (512 if on_cpu else 1024), args.width or 2048
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_task(Path(scratch) / "rmsnorm", rows, width, args.device)
        figures = measure(folder, args.device, args.minutes, args.within)
    figures |= {"task": f"rmsnorm {'fp32' if on_cpu else 'bf16'} ({rows}, {width})", "cores": os.cpu_count()}
    out = args.out or _default_out(args.device)
    out.write_text(json.dumps(figures | {"environment": environment()}, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
