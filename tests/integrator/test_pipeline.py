"""The whole way, on a model small enough for a test: from a module to a report, a package and a patched model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import hotswap
from hotswap.integrator.optimize import load_report
from hotswap.integrator.run_directory import load_run
from hotswap.optimizer.winner import Winner

pytestmark = pytest.mark.slow


class Net(nn.Module):
    """Wide enough that a fused norm pays: RMSNorm in many ops, as model code has it, between two linears."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1024) + 0.5)
        self.down = nn.Linear(1024, 16)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        normed = self.weight * torch.nn.functional.silu(wide).to(x.dtype)
        return {"normed": normed, "down": self.down(normed)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, torch.Tensor, Path]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = Net().eval(), torch.randn(1024, 1024)
    out = tmp_path_factory.mktemp("pipeline") / "run"
    # Whether a kernel is faster is not a test's to say: here every one that is right is kept.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotswap.optimizer.search.AT_FLOOR", 0.0)
        patch.setattr("hotswap.optimizer.decision.WORTH_TRYING", 0.0)
        patch.setattr("hotswap.integrator.ablate.decide", lambda *_: (True, "kept"))
        patch.setattr("hotswap.integrator.search_tasks._not_worth_it", lambda *_: None)
        hotswap.optimize(model, {"x": x}, budget="15s", top=1, mode="eager", out=out)
    return model, x, out


def test_a_run_swaps_a_kernel_in_and_says_what_the_model_gained(finished: tuple[Net, torch.Tensor, Path]) -> None:
    report = load_report(finished[2])
    assert report.complete
    assert [row.outcome for row in report.rows] == ["kernel"], report.rows[0].reason
    assert report.checks
    assert all(check.passed for check in report.checks)
    assert report.engagement[0].kernel_calls > 0
    assert set(report.end_to_end[0].speedup) == {"eager", "compile"}, report.notes


def test_the_user_s_model_is_left_as_it_was(finished: tuple[Net, torch.Tensor, Path]) -> None:
    model, x, _ = finished
    assert "forward" not in model.__dict__
    assert torch.equal(model(x=x)["down"], Net.forward(model, x)["down"])


def test_every_record_of_a_run_loads_again(finished: tuple[Net, torch.Tensor, Path]) -> None:
    folder = finished[2]
    assert load_run(folder).next_stage is None
    assert json.loads((folder / "env.json").read_text())["torch"] == torch.__version__
    assert [Winner.load(path).choice for path in (folder / "winners").glob("*.json")] == ["kernel"]


def test_the_report_opens_without_a_network(finished: tuple[Net, torch.Tensor, Path]) -> None:
    page = (finished[2] / "report.html").read_text()
    assert "src=" not in page
    assert "Content-Security-Policy" in page


def test_the_exported_package_patches_a_model_where_hotswap_is_not(finished: tuple[Net, torch.Tensor, Path]) -> None:
    folder = finished[2]
    torch.save((finished[0].state_dict(), finished[1]), folder / "given.pt")
    script = f"""
import sys
sys.modules["hotswap"] = None
sys.path[:0] = [{str(folder)!r}, {str(Path(__file__).parent)!r}]
import torch, patched
from test_pipeline_model import Net
state, x = torch.load({str(folder / "given.pt")!r})
model = Net().eval()
model.load_state_dict(state)
with torch.no_grad():
    before = model(x=x)
    made = patched.patch(model)
    after = model(x=x)
    assert any(e.kernel_calls for e in patched.engagement(model)), patched.engagement(model)
torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
print("same")
"""
    source = Path(__file__).read_text()
    start, end = source.index("class Net"), source.index("@pytest.fixture")
    (folder / "test_pipeline_model.py").write_text("import torch\nfrom torch import nn\n\n\n" + source[start:end])
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("same"), done.stderr[-2000:]


def test_a_finished_run_patches_a_model_in_place_and_out_again(finished: tuple[Net, torch.Tensor, Path]) -> None:
    model, x, folder = finished
    with torch.no_grad(), hotswap.patched(model, folder) as patch:
        model(x=x)
        assert sum(e.kernel_calls for e in patch.engagement()) == 1
    assert "forward" not in model.__dict__
