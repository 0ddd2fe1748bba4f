"""What a CUDA device does for captured graphs: record one, replay it, keep calls on several streams in order.

Everything that needs a GPU is here, behind `GraphDevice`; when to record and what may be replayed is decided elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

Results = tuple[Any, ...]

_WARM_RUNS = 2


class GraphDevice(Protocol):
    """Records what a function launches, for replay. All graphs of one device object may share memory for temporaries.

    lock: held by who records or replays, as the graphs' memory is in use meanwhile.
    """

    @property
    def lock(self) -> AbstractContextManager[Any]: ...

    def busy(self) -> bool:
        """Whether a capture is under way that is not ours, in which nothing can be recorded or replayed."""

    def record(
        self, run: Callable[[], Results], recording: Callable[[], object]
    ) -> tuple[Callable[[], object], Results]:
        """Run `run` until it is warm, call `recording`, record one more run; return what replays it, and its results.

        Each replay writes into the tensors returned here. Raises whatever `run` raises.
        """

    def enter(self) -> None:
        """Let what the calling stream does next wait for the last use of the graphs' memory on another stream."""

    def leave(self) -> None:
        """Note that the calling stream has used the graphs' memory."""


class CudaGraphs:
    """A GraphDevice on one CUDA device, with one memory pool for the temporaries of all its graphs.

    All are recorded on one stream: memory that a capture frees serves the next one only on the stream it came from.
    """

    def __init__(self, device: torch.device) -> None:
        self._lock = threading.RLock()
        self._device = device
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._last: tuple[torch.cuda.Stream, torch.cuda.Event] | None = None

    @property
    def lock(self) -> AbstractContextManager[Any]:
        return self._lock

    def busy(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def record(
        self, run: Callable[[], Results], recording: Callable[[], object]
    ) -> tuple[Callable[[], object], Results]:
        with torch.cuda.device(self._device):
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            if self._stream is None:
                self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            stream = self._stream
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                for _ in range(_WARM_RUNS):
                    run()
            torch.cuda.current_stream(self._device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            recording()
            # Other threads may allocate and synchronize meanwhile; what they do is none of the graph's.
            with (
                _own_workspaces(),
                torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"),
            ):
                results = run()
        return graph.replay, results

    def enter(self) -> None:
        if self._last is not None:
            stream, event = self._last
            now = torch.cuda.current_stream(self._device)
            if now != stream:
                now.wait_event(event)

    def leave(self) -> None:
        now = torch.cuda.current_stream(self._device)
        event = self._last[1] if self._last is not None else torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(now)
        self._last = (now, event)


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """A context in which cuBLAS takes workspaces anew: while capturing, from the graph's pool, where they stay mapped.

    torch keeps one for each handle and stream. The warm runs' lies in memory of everybody, and the graph would write
    there long after someone cleared it and gave it back: torch.compile's own CUDA graphs, at each recording of theirs.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
