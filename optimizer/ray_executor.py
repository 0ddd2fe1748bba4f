"""Judge on a Ray cluster: one actor a GPU (or a CPU), on as many machines as share the run's folder. An extra."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from ..models.errors import EnvironmentMissing
from .court import Court
from .executors import _ByCourt


class OnRay(_ByCourt):
    """Judges in `slots` Ray actors. address: of a running cluster, None for one on this machine, ended by `close`.

    gpus, cpus: what Ray reserves for an actor. Raises EnvironmentMissing where Ray is not installed.
    """

    def __init__(
        self,
        slots: int,
        *,
        address: str | None = None,
        gpus: float = 0.0,
        cpus: float = 1.0,
        threads: int | None = None,
    ) -> None:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise EnvironmentMissing("ray is not installed; pip install 'hotswap[ray]', or judge without it") from error
        self._ray: Any = ray
        died = ray.exceptions
        self.lost = (died.RayActorError, died.WorkerCrashedError, died.OutOfMemoryError)
        self._ours = not ray.is_initialized()
        if self._ours:
            ray.init(address=address, include_dashboard=False, log_to_driver=False)
        actor = self._ray.remote(Court).options(num_gpus=gpus, num_cpus=cpus)
        self._actors: list[Any] = [actor.remote(threads) for _ in range(slots)]
        self.slots = slots

    def close(self) -> None:
        for actor in self._actors:
            with suppress(*self.lost):  # it died before
                self._ray.get(actor.close.remote())
            self._ray.kill(actor)
        if self._ours:
            self._ray.shutdown()

    def _ask(self, slot: int, method: str, *values: Any) -> Future[Any]:
        asked: Future[Any] = getattr(self._actors[slot], method).remote(*values).future()
        return asked
