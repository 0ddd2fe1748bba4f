"""What a candidate races against: the reference in trusted workers, eagerly and compiled by Inductor."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from . import arena
from .hall import Hall, Worker, WorkerError
from .lane import Lane

_COMPILE_S = 300.0
# A rival's first outputs are looked at by nobody: the worker leaves out what does not fit.
_OUT_BYTES = 1 << 12


class Rivals:
    """Warm workers with the reference. Compiling goes on in the background until a rival is first needed.

    cases: the recorded inputs, which a rival is called on once before it takes part.
    """

    def __init__(
        self, hall: Hall, cases: Sequence[Sequence[Tensor]], folder: Path, *, compiled: bool, cache: Path
    ) -> None:
        self._hall = hall
        self._workers: dict[str, Worker] = {}
        self._failed: dict[str, str] = {}
        self._ready: set[str] = set()
        self._threads = []
        for name in ("eager", "inductor") if compiled else ("eager",):
            worker = hall.trusted({"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")})
            self._workers[name] = worker
            start = threading.Thread(target=self._start, args=(name, worker, cases, folder), daemon=True)
            start.start()
            self._threads.append(start)

    @property
    def missing(self) -> str:
        """Rivals that could not take part, each with the reason; empty when all did."""
        return "; ".join(f"{name}: {why}" for name, why in self._failed.items())

    def lanes(self, call_s: float) -> list[Lane]:
        """Return a lane for each rival that runs, once all are ready."""
        for thread in self._threads:
            thread.join()
        lanes = [Lane(n, w, None, call_s) for n, w in self._workers.items() if n not in self._failed]
        if not any(lane.name == "eager" for lane in lanes):
            raise RuntimeError(f"the reference itself does not run in a worker: {self._failed.get('eager')}")
        return lanes

    def close(self) -> None:
        """Give workers that still answer back to the hall; end one that failed or is still compiling."""
        for name, worker in self._workers.items():
            if name in self._ready:
                self._hall.give_back(worker)
            else:
                worker.end()
        # A thread still starting a rival sees its worker gone; left alone, it would abort an exiting interpreter.
        for thread in self._threads:
            thread.join()

    def _start(self, name: str, worker: Worker, cases: Sequence[Sequence[Tensor]], folder: Path) -> None:
        try:
            worker.ask("rival", seconds=_COMPILE_S, folder=str(folder), compiled=name == "inductor")
            for inputs in cases:
                layout, nbytes = arena.plan(inputs)
                inbox, _ = worker.arenas(nbytes, _OUT_BYTES)
                arena.write(inbox, layout, inputs)
                worker.ask("layout", seconds=10.0, layout=layout)
                worker.ask("call", seconds=_COMPILE_S, poison=0, keep=False)
        except WorkerError as error:
            self._failed[name] = str(error)
        else:
            self._ready.add(name)
