"""Read a task folder back: its record, its reference as a callable, and its inputs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..models.errors import RecordError
from .task import Task
from .task_inputs import rebuild


@dataclass(frozen=True)
class LoadedTask:
    """A task ready to be solved or judged. reference: returns a tuple of tensors; source: text of `reference.py`."""

    folder: Path
    task: Task
    reference: Callable[..., tuple[torch.Tensor, ...]]
    source: str
    kept: dict[str, torch.Tensor] = field(repr=False)

    def inputs(self, case_index: int = 0, generator: torch.Generator | None = None) -> list[torch.Tensor]:
        """Return fresh inputs of a recorded shape: captured values, or drawn by `generator` from their statistics."""
        return rebuild(self.task.cases[case_index].inputs, self.kept, self.task.device, generator)


def load_task(folder: Path) -> LoadedTask:
    """Return the task in `folder`; raise RecordError naming the file that is absent or broken."""
    task = Task.load(folder / "task.json")
    path = folder / "reference.py"
    kept_path = folder / "inputs.safetensors"
    try:
        source = path.read_text(encoding="utf-8")
        reference = load_function(path, "reference")
        kept = _load_storages(kept_path) if kept_path.exists() else {}
    except (OSError, SyntaxError, AttributeError, ImportError) as error:
        raise RecordError(f"{path}: cannot be loaded ({error}); extract the task again") from error
    return LoadedTask(folder, task, reference, source, kept)


def load_function(path: Path, name: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Import a Python file under a private name and return its function `name`."""
    module_name = f"_hotswap_task_{abs(hash(path.resolve())):x}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    function: Callable[..., tuple[torch.Tensor, ...]] = getattr(module, name)
    return function


def _load_storages(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise RecordError(f"{path}: not a whole safetensors file ({error}); extract the task again") from error
