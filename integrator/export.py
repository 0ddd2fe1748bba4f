"""Write a patched model as an importable package that needs torch and not us: `patched/`.

Kernels, the code that finds their regions and guards them, the model's spec. No weights.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Literal

from ..models.errors import ResourceExhausted, SpecError
from ..models.record import write_text
from ..models.spec import LoadOptions, classify
from ..optimizer.winner import Winner
from .results import Tail
from .rewrites.choice import FILE, RewriteChoice
from .rewrites.plan import SWITCHES
from .vendor import ROOT, foreign_imports, vendored

NATIVE_LINE = "from hotswap.optimizer.native import"

_MARK = "model.json"
_RUNTIME = "integrator/patch.py"
_SPECS = "models/spec.py"


@dataclass(frozen=True)
class Made:
    """What to say of the model an export is from.

    name: its class. spec: None for a model handed over in Python. way: how it was captured, and so how it is patched.
    """

    name: str
    spec: str | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    way: Literal["graph", "module"] = "graph"


def export(
    folder: Path,
    winners: Sequence[Winner],
    made: Made,
    *,
    tail: Tail = "eager",
    off: Mapping[str, str] | None = None,
) -> Path:
    """Write the package `folder` (its name is the package's) and return it; an earlier export there is replaced.

    off: the switches of the rewrites that did not pay, each with its reason; None where rewrites were not asked about.
    Raises SpecError where the folder holds something else or a kernel cannot stand alone, ResourceExhausted where the
    disk refuses; nothing is left half written.
    """
    _check_place(folder)
    files = dict(_files(folder.name, winners, made, tail, off))
    return replace_folder(folder, files)


def replace_folder(folder: Path, files: Mapping[str, str]) -> Path:
    """Write `folder` anew from its files' texts and return it; raise ResourceExhausted where the disk refuses.

    What was there stays until all is written.
    """
    building = folder.with_name(f".{folder.name}.building")
    try:
        shutil.rmtree(building, ignore_errors=True)
        for path, text in files.items():
            write_text(building / path, text)
        if folder.exists():
            shutil.rmtree(folder)
        building.rename(folder)
    except OSError as error:
        raise ResourceExhausted(f"{folder}: cannot be written ({error.strerror}); free space") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _check_place(folder: Path) -> None:
    if not folder.name.isidentifier():
        raise SpecError(f"{folder}: {folder.name!r} cannot be imported; expected a name like patched")
    if folder.exists() and not (folder / _MARK).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"{folder}: exists and is no export of hotswap; choose another folder")


def _files(
    package: str, winners: Sequence[Winner], made: Made, tail: Tail, off: Mapping[str, str] | None
) -> Iterator[tuple[str, str]]:
    kernels = {_stem(i, w): _alone(w) for i, w in enumerate(winners) if w.choice == "kernel"}
    needs = sorted({"torch"} | {name for text in kernels.values() for name in foreign_imports(text)})
    about, copies = _about(made, tail)
    yield from copies.items()
    yield _MARK, json.dumps(about, indent=1) + "\n"
    yield "__init__.py", _template("patched.py.txt")
    yield "README.md", _readme(package, winners, made, needs, off)
    if off is not None:
        choice = {"schema": RewriteChoice.SCHEMA, "record": "RewriteChoice", "off": dict(off)}
        yield FILE, json.dumps(choice, indent=1) + "\n"
    yield "_native.py", (ROOT / "optimizer" / "native.py").read_text(encoding="utf-8")
    yield "kernels/__init__.py", '"""The kernels, one file each."""\n'
    for stem, text in kernels.items():
        yield f"kernels/{stem}.py", text
    for number, winner in enumerate(winners):
        # The source stands in kernels/, the verdict with its samples in the run's report.
        short = replace(winner, source=None, verdict=None)
        body = {"schema": short.SCHEMA, "record": "Winner", **short.to_dict()}
        yield f"winners/{_stem(number, winner)}.json", json.dumps(body, indent=1) + "\n"
    digest = hashlib.sha256("".join(kernels.values()).encode()).hexdigest()[:8]
    replaced = {"integrator/winners.py": _template("winners.py.txt")}
    for path, text in vendored((_RUNTIME, _SPECS), replaced, f"hotswap_{digest}").items():
        yield f"_hotswap/{path}", text


def _stem(number: int, winner: Winner) -> str:
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in winner.task).strip("_").lower()
    return f"k{number:02d}_{name}"


def _alone(winner: Winner) -> str:
    """Return the kernel's source with its one import of ours turned to the package's own copy."""
    assert winner.source is not None
    text = winner.source.replace(NATIVE_LINE, "from .._native import")
    if "hotswap" in foreign_imports(text):
        raise SpecError(f"kernel {winner.task}: imports hotswap other than by {NATIVE_LINE!r}; it cannot stand alone")
    return text


def _about(made: Made, tail: Tail) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what `model.json` says, and the user's files to copy beside it."""
    from .. import __version__

    spec, copies, options = made.spec, dict[str, str](), dataclasses.asdict(made.options)
    copied = spec is not None and classify(spec) == "file"
    if spec is not None and copied:
        spec, more = _copied(spec, "model")
        copies |= more
    elif spec is not None and classify(spec) in ("directory", "config"):
        spec = str(Path(spec).expanduser().resolve())
    if made.options.inputs is not None:
        options["inputs"], more = _copied(made.options.inputs, "inputs")
        copies |= more
    about = {
        "model": made.name,
        "spec": spec,
        "copied": copied,
        "inputs_copied": made.options.inputs is not None,
        "options": options,
        "tail": tail,
        "way": made.way,
        "hotswap": __version__,
    }
    return about, copies


def _copied(text: str, folder: str) -> tuple[str, dict[str, str]]:
    """Return `file.py:name` inside `folder`, and the file with the siblings it imports."""
    path_text, _, name = text.rpartition(":")
    path = Path(path_text).expanduser()
    found: dict[str, str] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        target = f"{folder}/{file.relative_to(path.parent).as_posix()}"
        if target not in found:
            found[target] = file.read_text(encoding="utf-8")
            waiting += _siblings(found[target], path.parent)
    return f"{folder}/{path.name}:{name}", found


def _siblings(source: str, folder: Path) -> Iterator[Path]:
    """Yield the files in `folder` that `source` imports by absolute name, as `python file.py` would find them."""
    for node in ast.walk(ast.parse(source)):
        names = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        for name in names:
            parts = name.split(".")
            for depth in range(1, len(parts) + 1):
                inner = folder.joinpath(*parts[:depth])
                yield from (p for p in (inner.with_suffix(".py"), inner / "__init__.py") if p.is_file())


def _readme(
    package: str, winners: Sequence[Winner], made: Made, needs: Sequence[str], off: Mapping[str, str] | None
) -> str:
    from .. import __version__

    kernels = [(number, winner) for number, winner in enumerate(winners) if winner.choice == "kernel"]
    native = any(winner.source and NATIVE_LINE in winner.source for _, winner in kernels)
    loading = (
        () if made.spec is None or classify(made.spec) in ("file", "module") else ("transformers, for load() alone",)
    )
    rows = [f"| `kernels/{_stem(n, w)}.py` | {w.task} | {_domain(w)} |" for n, w in kernels]
    return Template(_template("README.md.txt")).substitute(
        model=made.name,
        package=package,
        kept=len(kernels),
        tasks=len(winners),
        needs=", ".join((*needs, *(("g++",) if native else ()), *loading)),
        spec=made.spec or f"a live {made.name}; load() needs a spec, patch(model) does not",
        table="\n".join(rows) or "| none | | |",
        rewrites="; ".join(title for switch, title in SWITCHES.items() if switch not in (off or {})) or "none",
        version=__version__,
    )


def _domain(winner: Winner) -> str:
    if winner.domain is None:
        return "nothing"
    dtypes = ", ".join(dict.fromkeys(spec.dtype for spec in winner.domain.inputs))
    sizes = ", ".join(f"{low}..{high}" for low, high in winner.domain.sizes)
    return f"{dtypes} on {winner.domain.device}" + (f", sizes {sizes}" if sizes else "")


def _template(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")
