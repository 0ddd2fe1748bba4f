"""The records of a task: a region of the captured graph as a folder that stands alone.

A task folder holds `task.json` (this record), `reference.py` (readable PyTorch: `reference(...)`, runs alone),
`inputs.safetensors` (captured storages, size-capped), `kernel.py` (the current best) and `attempts/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..models.record import Record

Role = Literal["activation", "weight"]
Kind = Literal["memory", "anchor"]


@dataclass(frozen=True)
class TensorSpec(Record):
    """How one input of a region lies in memory.

    role: "weight" for a parameter or buffer of the model, "activation" for everything else.
    storage: key of its captured storage in `inputs.safetensors` (uint8), None where only statistics were kept.
    alias_of: position of an earlier input that shares its storage, else None.
    low, high, mean, std: value statistics of the captured tensor (for integers the valid range is [low, high]).
    """

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str
    role: Role
    storage: str | None = None
    alias_of: int | None = None
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    std: float | None = None


@dataclass(frozen=True)
class ShapeCase(Record):
    """One recorded set of input shapes.

    calls: times a step. weight: calls times how often the step is served. eager_us: time of one call in the eager run.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    calls: int
    weight: float
    eager_us: float


@dataclass(frozen=True)
class Site(Record):
    """One place in the model where the region stands."""

    module: str
    module_class: str
    ops: tuple[str, ...]
    source: str
    graph: int
    whole_module: bool = False


@dataclass(frozen=True)
class Task(Record):
    """A region as a thing to be solved, shared by all sites whose fingerprints are equal.

    share: part of the weighted step spent in it. floor_us: least time of all calls a step on this machine.
    ceiling: how many times faster the whole model would be with this task at its floor (Amdahl).
    gain_us: attainable gain a step, `eager_us` minus `floor_us`, what tasks are ranked by.
    bytes, flops: work of all calls a step; outside matmuls a FLOP is one element of one op.
    size_symbols: input sizes that vary together, one entry for each: ((input index, dim), ...).
    kernels: symbols of the device kernels that its ops launched in the eager run, as a profiler shows them.
    """

    name: str
    fingerprint: str
    kind: Kind
    device: str
    ops: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: int
    cases: tuple[ShapeCase, ...]
    sites: tuple[Site, ...]
    eager_us: float
    floor_us: float
    share: float
    ceiling: float
    size_symbols: tuple[tuple[tuple[int, int], ...], ...] = ()
    bytes: int = 0
    flops: int = 0
    notes: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()

    @property
    def gain_us(self) -> float:
        return max(0.0, self.eager_us - self.floor_us)


@dataclass(frozen=True)
class Skipped(Record):
    """Something hot that did not become a task, and why."""

    what: str
    module: str
    self_us: float
    share: float
    reason: str


@dataclass(frozen=True)
class Extraction(Record):
    """All tasks of a run, best first, and what was left out.

    graphs: captured Dynamo graphs. breaks: graph breaks, each with file and line.
    covered: share of the eager step whose time belongs to nodes of captured graphs.
    way: how winners can be put in: "module" where the whole model gave no graph and its modules were captured singly.
    """

    model: str
    tasks: tuple[Task, ...]
    skipped: tuple[Skipped, ...]
    graphs: int
    breaks: tuple[str, ...]
    covered: float
    notes: tuple[str, ...] = ()
    way: Literal["graph", "module"] = "graph"


def task_folder(tasks: Path, rank: int, task: Task) -> Path:
    """Return the folder of a task inside a run's `tasks/`: rank first, so that a listing is the ranking."""
    return tasks / f"{rank:02d}-{task.name}"
