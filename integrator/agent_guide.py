"""Write a run's AGENTS.md: what an outside agent needs to know to work on its tasks, and nothing it could change."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from ..extractor.task import Task, task_folder
from ..models.record import write_text

NAME = "AGENTS.md"


def write_agent_guide(run: Path, model: str, tasks: Sequence[Task]) -> Path:
    """Write the guide into the run directory and return its path."""
    text = (resources.files(__package__) / "templates" / "AGENTS.md.txt").read_text(encoding="utf-8")
    lines = [
        f"- `{task_folder(Path(), rank, task).name}`: {' '.join(task.ops)} on {task.device}, {task.eager_us:.0f} us a "
        f"step, floor {task.floor_us:.0f} us; at its floor the whole model would be {task.ceiling:.3f}x faster"
        for rank, task in enumerate(tasks)
    ]
    path = run / NAME
    write_text(path, Template(text).substitute(model=model, run=run, tasks="\n".join(lines) or "None."))
    return path
