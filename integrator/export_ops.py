"""Write the winners of a run as a package of torch ops, or as a local repository for Hugging Face `kernels`.

Both need torch and not us; each op carries its verified domain and runs the original ops outside it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import pprint
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from string import Template

from ..extractor.task import Extraction, Task, task_folder
from ..models.errors import RecordError, SpecError
from ..optimizer.winner import Winner
from .export import NATIVE_LINE, replace_folder
from .vendor import ROOT, foreign_imports, vendored
from .winners import load_winners

_MARK = "ops.json"


@dataclass(frozen=True)
class Won:
    """One kernel to export: its task, the text of its reference, and the winner."""

    task: Task
    reference: str
    winner: Winner


def won_kernels(run: Path) -> list[Won]:
    """Return the kernels a run ended with; raise RecordError where it kept none."""
    extraction = Extraction.load(run / "extraction.json")
    winners = {w.fingerprint: w for w in load_winners(run) if w.choice == "kernel"}
    found = [
        Won(task, (task_folder(run / "tasks", rank, task) / "reference.py").read_text(encoding="utf-8"), winner)
        for rank, task in enumerate(extraction.tasks)
        if (winner := winners.get(task.fingerprint)) is not None
    ]
    if not found:
        raise RecordError(f"{run}: kept no kernel, so there is nothing to export (`hotswap report {run}` says why)")
    return found


def export_ops(folder: Path, won: Sequence[Won]) -> Path:
    """Write the package `folder` and return it; an earlier export there is replaced.

    Raises SpecError where the folder holds something else or its name cannot be imported.
    """
    _check_place(folder)
    files = _package(won)
    return _write(folder, files)


def export_layers(folder: Path, won: Sequence[Won]) -> Path:
    """Write `folder` as a local kernel repository whose layers load through `kernelize`; return it.

    Only a region that is a module's whole forward can be a layer. Raises SpecError where there is none.
    """
    _check_place(folder)
    layers = [text for w in won if (text := _layer(w)) is not None]
    if not layers:
        raise SpecError(f"{folder}: no kernel stands for a module's whole forward, so none can be a layer; export ops")
    device = won[0].task.device.partition(":")[0]
    package = "ops"
    variant = f"build/torch-{device}"
    name = folder.name.replace("_", "-").lower()
    digest = _digest(won)
    body = {
        "name": name,
        "id": f"_{name.replace('-', '_')}_{device}_{digest}",
        "version": 1,
        "license": "other",
        "python-depends": [],
    }
    files = {f"{variant}/{package}/{path}": text for path, text in _package(won).items()}
    files[f"{variant}/metadata.json"] = json.dumps({**body, "backend": {"type": device}}, indent=1) + "\n"
    files[f"{variant}/__init__.py"] = (
        f'"""Kernels won by hotswap, as layers and ops."""\n\nfrom . import layers, {package}\n'
    )
    files[f"{variant}/layers.py"] = _template("layers.py.txt").substitute(package=package, layers="\n\n".join(layers))
    files[_MARK] = json.dumps({"layers": len(layers)}) + "\n"
    return _write(folder, files)


def _package(won: Sequence[Won]) -> dict[str, str]:
    digest = _digest(won)
    files = {
        _MARK: json.dumps({"ops": [w.task.name for w in won]}, indent=1) + "\n",
        "_native.py": (ROOT / "optimizer" / "native.py").read_text(encoding="utf-8"),
    }
    outputs = {}
    for number, each in enumerate(won):
        stem = f"k{number:02d}_{_name(each.task.name)}"
        outputs[stem] = each.task.outputs
        source = (each.winner.source or "").replace(NATIVE_LINE, "from .._native import")
        if "hotswap" in foreign_imports(source):
            raise SpecError(
                f"kernel {each.task.name}: imports hotswap other than by {NATIVE_LINE!r}; it cannot stand alone"
            )
        short = replace(each.winner, source=None, verdict=None)
        body = {"schema": short.SCHEMA, "record": "Winner", **short.to_dict()}
        files[f"kernels/{stem}.py"] = source
        files[f"references/{stem}.py"] = each.reference
        files[f"winners/{stem}.json"] = json.dumps(body, indent=1) + "\n"
    copies = vendored(("integrator/ops.py",), {}, f"hotswap_{digest}")
    files |= {f"_hotswap/{path}": text for path, text in copies.items()}
    files["__init__.py"] = _template("ops.py.txt").substitute(
        namespace=f"hotswap_winners_{digest}", outputs=pprint.pformat(outputs)
    )
    return files


def _layer(won: Won) -> str | None:
    """Return the class for a region that is a module's whole forward, None where it is none."""
    whole = next((site for site in won.task.sites if site.whole_module), None)
    if whole is None or won.task.outputs != 1:
        return None
    specs = won.task.cases[0].inputs
    given = [s.name for s in specs if s.role == "activation"]
    inputs = ", ".join(s.name if s.role == "activation" else f'getattr(self, "{s.name}", None)' for s in specs)
    tuple_of = f"({inputs},)"
    return (
        f"class {whole.module_class}(nn.Module):\n"
        f"    has_backward = False\n\n"
        f"    def forward(self, {', '.join(given)}):\n"
        f"        return _answer(self, ops.{_name(won.task.name)}, {tuple_of}, ({', '.join(given)},))\n"
    )


def _name(task: str) -> str:
    name = re.sub(r"\W+", "_", task).strip("_").lower() or "region"
    return name if name.isidentifier() else f"op_{name}"


def _digest(won: Sequence[Won]) -> str:
    return hashlib.sha256("".join(w.winner.source or "" for w in won).encode()).hexdigest()[:8]


def _template(name: str) -> Template:
    return Template((resources.files(__package__) / "templates" / name).read_text(encoding="utf-8"))


def _check_place(folder: Path) -> None:
    if not folder.name.isidentifier():
        raise SpecError(f"{folder}: {folder.name!r} cannot be imported; expected a name like winners")
    if folder.exists() and not (folder / _MARK).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"{folder}: exists and is no export of hotswap; choose another folder")


def _write(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        if path.endswith(".py"):
            ast.parse(text, filename=path)
    return replace_folder(folder, files)
