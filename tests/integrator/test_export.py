"""Exported packages, used where hotswap cannot be imported."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hotswap.integrator import vendor
from hotswap.integrator.export import NATIVE_LINE, Made, export
from hotswap.integrator.rewrites.plan import SWITCHES
from hotswap.models import spec as specs
from hotswap.models.errors import SpecError
from hotswap.optimizer.winner import Winner

MakeWinners = Callable[..., list[Winner]]

_MODEL = """
import torch
from torch import nn
from parts import Norm

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(Norm(16) for _ in range(2))
        self.mid = nn.Linear(16, 16)

    def forward(self, x, *, scale=1.0):
        return {"out": self.norms[1](self.mid(self.norms[0](x))) * scale}

def build():
    return Net(), (torch.randn(4, 16),)
"""
_PARTS = """
import torch
from torch import nn

class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x):
        return torch.tanh(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight)
"""

# Runs where hotswap is no module: None in sys.modules makes any import of it fail.
_CHILD = """
import sys
sys.modules["hotswap"] = None
sys.path.insert(0, sys.argv[1])
"""


@pytest.fixture
def factory(tmp_path: Path) -> str:
    folder = tmp_path / "user"
    folder.mkdir()
    (folder / "net.py").write_text(_MODEL)
    (folder / "parts.py").write_text(_PARTS)
    return f"{folder / 'net.py'}:build"


@pytest.fixture
def package(factory: str, tmp_path: Path, make_winners: MakeWinners) -> Path:
    """An export of the factory's model whose kernels load a C++ library as won ones do."""
    workload = specs.load(factory)
    winners = make_winners(workload.model.forward, *workload.calls[0].args)
    assert winners
    built = [dataclasses.replace(w, source=_with_library(str(w.source))) for w in winners]
    left = dataclasses.replace(built[0], task="softmax", fingerprint="none", choice="leave", source=None, domain=None)
    return export(tmp_path / "out" / "patched", [*built, left], Made("Net", factory))


def _with_library(source: str) -> str:
    line = f"{NATIVE_LINE} DEFAULT_FLAGS, compile_cpp"
    return f"{line}\n{source}\n\nassert compile_cpp('extern \"C\" int two() {{ return 2; }}').two() == 2\n"


def _run(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error::UserWarning", "-c", _CHILD + code, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_package_under_any_name_agrees_with_eager_where_hotswap_is_absent(package: Path, factory: str) -> None:
    Path(factory.partition(":")[0]).unlink()  # the package has its own copy
    package.rename(package.with_name("faster"))
    out = _run(
        """
import torch
import faster
model = faster.load()
(call,) = faster.example_calls()
with torch.no_grad():
    fast = model(*call.args)["out"]
    rows = faster.engagement(model)
    faster.unpatch(model)
    slow = model(*call.args)["out"]
    with faster.patched(model):
        again = model(*call.args, scale=2.0)["out"]
assert faster.engagement(model) == ()
assert rows and all(row.kernel_calls > 0 and row.fallback_calls == 0 for row in rows), rows
torch.testing.assert_close(fast, slow)
torch.testing.assert_close(again, 2 * slow)

mine = type(model)().eval()
with torch.no_grad():
    slow = mine(call.args[0][:3])["out"]
    patch = faster.patch(mine)
    torch.testing.assert_close(mine(call.args[0][:3])["out"], slow)
assert all(row.kernel_calls > 0 for row in patch.engagement())
ours = [n for n in sys.modules if n.split(".")[0] == "hotswap" and sys.modules[n] is not None]
assert not ours, ours
print("agreed")
""",
        package.parent,
    )
    assert out == "agreed\n"


_ATTENTION = """
import torch
from torch import nn
from torch.nn import functional

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        q, k, v = (one(x).unflatten(-1, (2, 16)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

def build():
    return Attention(), (torch.randn(2, 8, 32),)
"""


def test_a_package_of_rewrites_alone_loads_in_a_new_process_and_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(_ATTENTION)
    out = tmp_path / "out" / "patched"
    export(out, [], Made("Attention", f"{tmp_path / 'net.py'}:build"), off={"rewrite:drop-copies": "within noise"})
    (tmp_path / "net.py").unlink()
    said = _run(
        """
import torch
import patched
model = patched.load()
(call,) = patched.example_calls()
with torch.no_grad():
    fast = model(*call.args)
    patched.unpatch(model)
    slow = model(*call.args)
    put_in = patched.patch(model)
    again = model(call.args[0][:1])
torch.testing.assert_close(fast, slow)
torch.testing.assert_close(again, slow[:1])
print(*sorted(put_in.rewritten))
assert not [n for n in sys.modules if n.split(".")[0] == "hotswap" and sys.modules[n] is not None]
""",
        out.parent,
    )
    assert "rewrite:merge-linears" in said.split()
    text = (out / "README.md").read_text()
    assert "0 of 0 hot regions" in text
    assert SWITCHES["rewrite:merge-linears"] in text
    assert SWITCHES["rewrite:drop-copies"] not in text


def test_two_exports_and_hotswap_itself_live_in_one_process(
    package: Path, factory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    import hotswap

    winners = [Winner.load(p) for p in sorted((package / "winners").glob("*.json"))]
    sources = {p.stem: p.read_text() for p in (package / "kernels").glob("k*.py")}
    whole = [
        dataclasses.replace(w, source=sources[p.stem].replace("from .._native import", NATIVE_LINE))
        for w, p in zip(winners, sorted((package / "winners").glob("*.json")), strict=True)
        if w.choice == "kernel"
    ]
    other = [dataclasses.replace(w, source=f"{w.source}\n# another\n") for w in whole]
    export(package.parent / "second", other, Made("Net"))
    run = tmp_path / "run"
    for winner in whole:
        winner.save(run / "winners" / f"{winner.task}.json")
    monkeypatch.syspath_prepend(str(package.parent))
    model = specs.load(factory).model
    x = torch.randn(2, 16)
    with torch.no_grad():
        slow = model(x)["out"]
        for put_in in (importlib.import_module("patched"), importlib.import_module("second"), None):
            patch: Any = put_in.patch(model) if put_in else hotswap.patch(model, run)
            torch.testing.assert_close(model(x)["out"], slow)
            assert all(row.kernel_calls for row in patch.engagement())
            (put_in or hotswap).unpatch(model)
    for name in [n for n in sys.modules if n.split(".")[0] in ("patched", "second")]:
        del sys.modules[name]


def test_a_package_says_what_it_holds_and_holds_no_weights(package: Path) -> None:
    about = json.loads((package / "model.json").read_text())
    assert (about["model"], about["spec"], about["copied"], about["tail"]) == (
        "Net",
        "model/net.py:build",
        True,
        "eager",
    )
    assert sorted(p.name for p in (package / "model").iterdir()) == ["net.py", "parts.py"]
    text = (package / "README.md").read_text()
    assert "Needs: torch, g++." in text
    assert "import patched" in text
    assert all("hotswap.optimizer" not in p.read_text() for p in (package / "kernels").glob("*.py"))
    assert sum(p.stat().st_size for p in package.rglob("*")) < 500_000


def test_a_model_handed_over_in_python_cannot_be_loaded_and_says_how_to_patch_it(tmp_path: Path, package: Path) -> None:
    export(tmp_path / "live" / "patched", [], Made("Net"))
    out = _run(
        """
import patched
assert "torch" not in sys.modules
try:
    patched.load()
except ValueError as error:
    print(error)
""",
        tmp_path / "live",
    )
    assert "made from a live Net" in out
    assert "patch(model)" in out


def test_a_kernel_that_needs_more_of_hotswap_is_refused(tmp_path: Path) -> None:
    source = "import hotswap.optimizer.native\ndef kernel(x): return x\n"
    winner = Winner("gelu", "f", "kernel", "hand", source, None, None, False, 1, "")
    with pytest.raises(SpecError, match="kernel gelu: imports hotswap other than by"):
        export(tmp_path / "patched", [winner], Made("Net"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_export_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "patched").mkdir()
    (tmp_path / "patched" / "mine.txt").write_text("x")
    with pytest.raises(SpecError, match="is no export of hotswap"):
        export(tmp_path / "patched", [], Made("Net"))
    with pytest.raises(SpecError, match="cannot be imported"):
        export(tmp_path / "my-model", [], Made("Net"))
    (tmp_path / "patched" / "mine.txt").unlink()
    export(tmp_path / "patched", [], Made("Net"))
    export(tmp_path / "patched", [], Made("Other"))
    assert json.loads((tmp_path / "patched" / "model.json").read_text())["model"] == "Other"


def test_what_is_vendored_needs_torch_alone_and_keeps_no_op_in_our_namespace() -> None:
    files = vendor.vendored(("integrator/patch.py",), {}, "other")
    assert {"integrator/patch.py", "extractor/regions.py", "integrator/__init__.py", "__init__.py"} <= set(files)
    assert not any(path.startswith(("cli/", "profiler/", "integrator/report")) for path in files)
    foreign = {path: vendor.foreign_imports(text) for path, text in files.items() if path.endswith(".py")}
    assert set().union(*foreign.values()) <= {"torch", "numpy", "networkx", "triton"}
    # Imported by functions that are called on a GPU, where torch brings it.
    assert {path for path, names in foreign.items() if "triton" in names} == {
        "integrator/rewrites/band_attention_kernel.py",
        "integrator/rewrites/split_attention_kernel.py",
    }
    assert 'Library("other", "FRAGMENT")' in files["integrator/ops.py"]
    assert "ops.hotswap" not in files["integrator/ops.py"]


def test_an_import_that_an_export_may_not_need_is_refused() -> None:
    with pytest.raises(ValueError, match=r"models/errors.py:1 imports rich; an exported package may need only"):
        vendor.vendored(("models/errors.py",), {"models/errors.py": "import rich\n"}, "other")
