"""Measure what hotswap itself costs: start of the command line, and profile plus extract as layers grow.

usage: python benchmarks/overhead.py [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from hotswap.extractor.capture import capture
from hotswap.extractor.extract import extract
from hotswap.models.environment import environment
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
        "tasks": len(extraction.tasks),
        "shape_cases": sum(len(t.cases) for t in extraction.tasks),
        "sites": sum(len(t.sites) for t in extraction.tasks),
    }


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
    }
    print(json.dumps({k: made[k] for k in ("startup", "layers")}, indent=1))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
