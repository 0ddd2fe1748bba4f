"""Get a named object out of the user's own Python: a file or an importable module. Knows nothing of models."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import SpecError
from .suggest import did_you_mean
from .trial import explained


def from_file(text: str) -> Any:
    """Return the object that `path/to/file.py:name` names, after running the file as `run_file` does."""
    path_text, _, name = text.rpartition(":") if not text.endswith(".py") else (text, "", "")
    path = Path(path_text).expanduser()
    if not path.is_file():
        raise SpecError(f"{text}: no such file: {path}; give an existing path/to/file.py:factory")
    if not name.isidentifier():
        raise SpecError(f"{text}: expected path/to/file.py:factory, got no factory name{_offer(path)}")
    module = run_file(path)
    return _attribute(module, name, text)


def run_file(path: Path) -> ModuleType:
    """Run a Python file under a private name and return its module; raise ModelRaised and the like where it raises.

    The file's folder goes on the import path, as `python file.py` would put it, and stays: forwards may import late.
    """
    given, path = path, path.resolve()
    # A name of our own: the stem may be that of an installed module.
    module_name = f"hotswap_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise SpecError(f"{given}: not a Python file; its name must end in .py")
    _put_on_path(path.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's file may raise anything, or be a script that exits
        del sys.modules[module_name]
        raise explained(error, str(given), near=path) from error
    return module


def from_module(text: str) -> Any:
    """Return the object that `package.module:Name` names; the working directory is importable, as under `python -m`."""
    module_name, _, name = text.partition(":")
    parts = [*module_name.split("."), *name.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise SpecError(f"{text}: expected package.module:Class, got something that is not a Python name")
    _put_on_path(Path.cwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the user's module may raise anything while it is imported
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise SpecError(
                f"{text}: no module {error.name!r} is installed or in {Path.cwd()}; expected package.module:Class"
            ) from error
        raise explained(error, module_name) from error
    return _attribute(module, name, text)


def _attribute(module: Any, name: str, text: str) -> Any:
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
            hint = did_you_mean(part, public) if public else "; it defines nothing that can be called"
            raise SpecError(f"{text}: {getattr(module, '__file__', module.__name__)} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def _offer(path: Path) -> str:
    """Return the spec the user probably meant, found without running the file."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError, OSError):
        return "; add :factory"
    names = [n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")]
    return f"; did you mean {path}:{names[-1]}?" if names else "; the file defines no function or class"


def _put_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
