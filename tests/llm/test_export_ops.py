"""Winners as torch ops and as layers: they run where they were verified, and need no hotswap."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from scripted import ScriptedJudge

from hotswap.extractor.task import Extraction, Site, Task
from hotswap.integrator.export_ops import Won, export_layers, export_ops, won_kernels
from hotswap.models.errors import RecordError, SpecError
from hotswap.optimizer.domain import verified_domain
from hotswap.optimizer.winner import Winner

SOURCE = """
import math

import torch

CONSTRAINTS = {"contiguous": ["x"]}


def kernel(x):
    return 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5)))
"""
REFERENCE = "import torch\n\n\ndef reference(x):\n    return (torch.nn.functional.gelu(x),)\n"


@pytest.fixture
def won(gelu: Task) -> Won:
    task = replace(gelu, sites=(Site("act", "GELU", ("gelu",), "", 0, whole_module=True),))
    domain = verified_domain(task, ScriptedJudge().tried, 1)
    winner = Winner("gelu", task.fingerprint, "kernel", "llm:m", SOURCE, domain, None, False, 3, "2x")
    return Won(task, REFERENCE, winner)


def run(folder: Path, script: str) -> str:
    """Run a script beside the package, in a process of its own that must not import hotswap."""
    head = f"import sys; sys.path.insert(0, {str(folder)!r})\nimport torch\n"
    script = f"{head}{script}\nassert 'hotswap' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_op_runs_in_its_domain_and_the_original_elsewhere_and_both_are_counted(tmp_path: Path, won: Won) -> None:
    export_ops(tmp_path / "winners", [won])
    said = run(
        tmp_path,
        "import winners\n"
        "x = torch.randn(100, 384)\n"
        "torch.testing.assert_close(winners.gelu(x), torch.nn.functional.gelu(x))\n"
        "winners.gelu(x.double()); winners.gelu(torch.randn(3, 384).t().contiguous().t())\n"
        "y = x.clone().requires_grad_(); winners.gelu(y).sum().backward(); assert y.grad is not None\n"
        "compiled = torch.compile(lambda t: winners.gelu(t) + 1, fullgraph=True, backend='aot_eager')\n"
        "with torch.no_grad(): torch.testing.assert_close(compiled(x), torch.nn.functional.gelu(x) + 1)\n"
        "print(winners.counts()['gelu']['kernel'], sorted(winners.counts()['gelu']['original']))\n",
    )
    calls, _, reasons = said.strip().partition(" ")
    assert int(calls) == 2
    assert "input 0: dtype float64, expected float32" in reasons
    assert "input 0: not contiguous, which the kernel needs" in reasons


def test_an_export_replaces_an_earlier_one_and_nothing_else(tmp_path: Path, won: Won) -> None:
    export_ops(tmp_path / "winners", [won])
    export_ops(tmp_path / "winners", [won])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(SpecError, match="is no export of hotswap"):
        export_ops(tmp_path / "mine", [won])
    with pytest.raises(SpecError, match="cannot be imported"):
        export_ops(tmp_path / "my-kernels", [won])


def test_a_region_that_is_no_whole_module_is_no_layer(tmp_path: Path, won: Won) -> None:
    inner = replace(won, task=replace(won.task, sites=(replace(won.task.sites[0], whole_module=False),)))
    with pytest.raises(SpecError, match="none can be a layer"):
        export_layers(tmp_path / "layers", [inner])


def test_layers_load_through_kernelize_and_a_layer_that_differs_keeps_its_own_forward(tmp_path: Path, won: Won) -> None:
    pytest.importorskip("kernels")
    export_layers(tmp_path / "mine", [won])
    run(
        tmp_path,
        "import os; os.environ['HF_HUB_OFFLINE'] = '1'; os.environ['DISABLE_TELEMETRY'] = '1'\n"
        "from pathlib import Path\n"
        "from kernels import LocalLayerRepository, Mode, kernelize, register_kernel_mapping\n"
        "from kernels import use_kernel_forward_from_hub\n"
        f"repo = LocalLayerRepository(repo_path=Path({str(tmp_path / 'mine')!r}), layer_name='GELU')\n"
        "@use_kernel_forward_from_hub('GELU')\n"
        "class Act(torch.nn.Module):\n"
        "    def __init__(self, approximate): super().__init__(); self.approximate = approximate\n"
        "    def forward(self, x): return torch.nn.functional.gelu(x, approximate=self.approximate)\n"
        "register_kernel_mapping({'GELU': {'cpu': {Mode.INFERENCE: repo}}})\n"
        "model = torch.nn.Sequential(Act('none'), Act('tanh')).eval()\n"
        "x = torch.randn(64, 384)\n"
        "with torch.no_grad():\n"
        "    wanted = model(x)\n"
        "    model = kernelize(model, mode=Mode.INFERENCE, device='cpu', use_fallback=False)\n"
        "    for _ in range(3): torch.testing.assert_close(model(x), wanted)\n"
        "from kernels import get_local_kernel\n"
        f"ops = get_local_kernel(Path({str(tmp_path / 'mine')!r})).ops\n"
        "assert ops.counts()['gelu']['kernel'] == 4, ops.counts()\n",
    )


def test_a_run_that_kept_no_kernel_has_nothing_to_export(tmp_path: Path, won: Won) -> None:
    Extraction("m", (won.task,), (), 1, (), 1.0).save(tmp_path / "extraction.json")
    (tmp_path / "tasks" / "00-gelu").mkdir(parents=True)
    (tmp_path / "tasks" / "00-gelu" / "reference.py").write_text(REFERENCE)
    left = Winner("gelu", won.task.fingerprint, "leave", None, None, None, None, False, 1, "slower")
    left.save(tmp_path / "winners" / "gelu.json")
    with pytest.raises(RecordError, match="kept no kernel"):
        won_kernels(tmp_path)
    won.winner.save(tmp_path / "winners" / "gelu.json")
    assert won_kernels(tmp_path) == [won]
