"""A judge for many tasks in one process: one hall of workers, the judges of a few tasks kept open, questions by folder.

It is what an executor runs on each device, in this process, in another, or on another machine: plain values go in, and
records as plain data come out.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from .judge.hall import Hall
    from .judge.judge import Judge

# Each open judge keeps the processes of its rivals and its inputs in memory; opening one again costs seconds.
MOST_OPEN = 3


class Pace(TypedDict):
    """How a judge times: seconds of a block, blocks a side, bytes of timed input sets."""

    block_s: float
    rounds: int
    pool_bytes: int | None


class Court:
    """Judges candidates for any task it can reach by path. threads: of torch and of kernels, None for torch's own."""

    def __init__(self, threads: int | None = None) -> None:
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        self._halls: dict[str, Hall] = {}
        self._open: OrderedDict[str, Judge] = OrderedDict()
        self._paces: dict[str, Pace] = {}

    def open(self, folder: str, pace: Pace) -> dict[str, Any]:
        """Open the judge of a task; return the input shapes it tries beyond the recorded ones.

        Raises InputError where the task can tell nothing right from anything wrong.
        """
        self._paces[folder] = pace
        return {"tried": [[list(shape) for shape in shapes] for shapes in self._judge(folder).tried]}

    def baseline(self, folder: str) -> dict[str, Any]:
        """Return the race of a task's rivals, as plain data."""
        return self._judge(folder).baseline().to_dict()

    def verdict(self, folder: str, source: str) -> dict[str, Any]:
        """Return the verdict on a candidate, as plain data."""
        return self._judge(folder).verdict(source).to_dict()

    def leave(self, folder: str) -> None:
        """Close a task's judge; a question about the task opens it again."""
        judge = self._open.pop(folder, None)
        if judge is not None:
            judge.close()

    def close(self) -> None:
        """End every process of this court."""
        for folder in list(self._open):
            self.leave(folder)
        for hall in self._halls.values():
            hall.close()
        self._halls.clear()

    def _judge(self, folder: str) -> Judge:
        from ..extractor.task import Task
        from .judge.hall import Hall
        from .judge.judge import Judge

        if folder not in self._open:
            while len(self._open) >= MOST_OPEN:
                self.leave(next(iter(self._open)))
            device = Task.load(Path(folder) / "task.json").device
            if device not in self._halls:
                self._halls[device] = Hall(device=device)
            self._open[folder] = Judge(folder, hall=self._halls[device], **self._paces[folder])
        self._open.move_to_end(folder)
        return self._open[folder]
