"""What a candidate races against: the reference in trusted workers, eagerly and compiled by Inductor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from . import arena
from .hall import Hall, HallGoneError, Worker, WorkerError
from .lane import Lane

logger = logging.getLogger(__name__)

_COMPILE_S = 300.0
# A rival's first outputs are looked at by nobody: the worker leaves out what does not fit.
_OUT_BYTES = 1 << 12
# Inductor builds and loads a library for every vector extension of the CPU before it compiles anything: 8 s of a core
# where there are six. Told that they work it does not; where one does not work it is tried again as it would be.
_TRUSTING = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}


class Rivals:
    """Warm workers with the reference. Starting and compiling go on in the background until a rival is first needed.

    cases: the recorded inputs, which a rival is called on once before it takes part.
    """

    def __init__(
        self, hall: Hall, cases: Sequence[Sequence[Tensor]], folder: Path, *, compiled: bool, cache: Path
    ) -> None:
        self._hall = hall
        self._cases, self._folder = cases, folder
        self._environment = {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
        self._workers: dict[str, Worker] = {}
        self._failed: dict[str, str] = {}
        self._ready: set[str] = set()
        self._closing = False
        self._changing = threading.Lock()
        self._names = ("eager", "inductor") if compiled else ("eager",)
        self._threads = [threading.Thread(target=self._start, args=(name,), daemon=True) for name in self._names]
        for start in self._threads:
            start.start()

    @property
    def missing(self) -> str:
        """Rivals that could not take part, each with the reason; empty when all did."""
        return "; ".join(f"{name}: {why}" for name, why in self._failed.items())

    def lanes(self, call_s: float) -> list[Lane]:
        """Return a lane for each rival that runs, once all are ready."""
        for thread in self._threads:
            thread.join()
        lanes = [Lane(n, self._workers[n], None, call_s) for n in self._names if n not in self._failed]
        if not any(lane.name == "eager" for lane in lanes):
            raise RuntimeError(f"the reference itself does not run in a worker: {self._failed.get('eager')}")
        return lanes

    def close(self) -> None:
        """Give workers that still answer back to the hall; end one that failed or is still compiling."""
        with self._changing:
            self._closing = True
            for name, worker in self._workers.items():
                if name in self._ready:
                    self._hall.give_back(worker)
                else:
                    worker.end()
        # A thread still starting a rival sees its worker gone; left alone, it would abort an exiting interpreter.
        for thread in self._threads:
            thread.join()

    def _start(self, name: str) -> None:
        try:
            try:
                self._call(self._worker(name, self._environment | _TRUSTING), compiled=name == "inductor")
            except WorkerError as error:
                if name == "eager" or self._closing:
                    raise
                logger.info("Inductor failed (%s); tried again with its own tests of the CPU's extensions", error)
                self._workers[name].end()
                self._call(self._worker(name, self._environment), compiled=True)
        except (WorkerError, HallGoneError) as error:
            self._failed[name] = str(error)
        else:
            self._ready.add(name)

    def _worker(self, name: str, environment: dict[str, str]) -> Worker:
        """Return a worker for a rival; raise WorkerError where nobody waits for it any more."""
        worker = self._hall.trusted(environment)
        with self._changing:
            if self._closing:
                worker.end()
                raise WorkerError("the judge was closed while it started")
            self._workers[name] = worker
        return worker

    def _call(self, worker: Worker, *, compiled: bool) -> None:
        """Load the reference and call it once on every case."""
        worker.ask("rival", seconds=_COMPILE_S, folder=str(self._folder), compiled=compiled)
        for inputs in self._cases:
            layout, nbytes = arena.plan(inputs)
            inbox, _ = worker.arenas(nbytes, _OUT_BYTES)
            arena.write(inbox, layout, inputs)
            worker.ask("layout", seconds=10.0, layout=layout)
            worker.ask("call", seconds=_COMPILE_S, poison=0, keep=False)
