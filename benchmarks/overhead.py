"""Measure what hotswap itself costs: the start of the command line; profile and extract as layers grow; memory.

usage: python benchmarks/overhead.py [--out FILE]

Seconds of capture and extract stand beside those that Dynamo alone takes to trace the model (torch.compile with
backend="eager", a first call). Memory is the most that a process held, of one that runs the model and of one that also
profiles, captures and extracts it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from hotswap.extractor.capture import capture
from hotswap.extractor.extract import extract
from hotswap.models.environment import environment
from hotswap.models.spec import LoadOptions, load
from hotswap.models.workload import Call, Workload
from hotswap.profiler.record import record

RESULTS = Path(__file__).parent / "results"


def startup() -> dict[str, float]:
    """Return median seconds of `hotswap --help` and of importing the package, five runs each."""

    def median(command: list[str]) -> float:
        taken = []
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    hotswap = str(Path(sys.executable).with_name("hotswap"))
    return {"help_s": median([hotswap, "--help"]), "import_s": median([sys.executable, "-c", "import hotswap"])}


def layers(count: int) -> dict[str, Any]:
    """Return seconds of profile and extract, and the number of tasks, for a Llama of `count` equal layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch._dynamo.reset()
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=768,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_hidden_layers=count,
        vocab_size=1024,
    )
    model = LlamaForCausalLM(config).bfloat16().eval()
    ids = torch.randint(0, 1024, (2, 128))
    workload = Workload(model, (Call(kwargs={"input_ids": ids, "use_cache": False}),))
    traced = trace_s(workload)
    start = time.perf_counter()
    profile = record(workload)
    profiled = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        extraction = extract("llama", capture(workload), profile, Path(scratch), top=32)
    done = time.perf_counter()
    return {
        "layers": count,
        "profile_s": profiled - start,
        "extract_s": done - profiled,
        "trace_s": traced,
        "extract_over_trace": (done - profiled) / traced,
        "tasks": len(extraction.tasks),
        "shape_cases": sum(len(t.cases) for t in extraction.tasks),
        "sites": sum(len(t.sites) for t in extraction.tasks),
    }


def trace_s(workload: Workload) -> float:
    """Return the seconds that Dynamo takes to trace the model, by a first call that compiles nothing."""
    (call,) = workload.calls
    with torch.no_grad():
        workload.model(*call.args, **call.kwargs)
        torch._dynamo.reset()
        start = time.perf_counter()
        torch.compile(workload.model, backend="eager")(*call.args, **call.kwargs)
        took = time.perf_counter() - start
    torch._dynamo.reset()
    return took


def memory(spec: str = "bert-base@full") -> dict[str, Any]:
    """Return the peaks of a process that runs a model and of one that profiles, captures and extracts it, MiB."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as processes:
        plain, ours = (processes.submit(peak_mib, spec, extracted).result() for extracted in (False, True))
    return {"model": spec, "plain_mib": plain, "extracted_mib": ours, "ratio": ours / plain}


def peak_mib(spec: str, extracted: bool) -> float:
    """Return the most memory this process has held after a few runs of the model, or after all of extraction."""
    workload = load(spec, LoadOptions(batch=2, seq_len=(128,)))
    (call,) = workload.calls
    with torch.no_grad():
        for _ in range(3):
            workload.model(*call.args, **call.kwargs)
    if extracted:
        profile = record(workload)
        with tempfile.TemporaryDirectory() as scratch:
            extract("model", capture(workload), profile, Path(scratch), top=8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "overhead.json")
    asked = parser.parse_args()
    made = {
        "suite": "overhead",
        "measured_at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "environment": environment(),
        "startup": startup(),
        "layers": [layers(n) for n in (2, 8, 32)],
        "memory": memory(),
    }
    print(json.dumps({k: made[k] for k in ("startup", "layers", "memory")}, indent=1))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
