"""What a worker does on a CUDA device: the same orders, with timed calls replayed from CUDA graphs.

A graph of one call on each of N input sets has no host work between calls, so a sprint of many short kernels is device
time. What cannot be captured (a kernel that synchronises, or allocates through another library) is called one by one
and says so: its time then holds the launches.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .bench import Bench
from .memory import segment_of

# Calls before a capture: libraries make workspaces and Triton compiles on the first ones.
_WARM_CALLS = 2


@dataclass
class Captured:
    """A graph of calls on the first sets of a pool. outs: what the calls returned; pointers: where it lies."""

    graph: torch.cuda.CUDAGraph
    outs: list[Any]
    pointers: list[int]


class DeviceBench(Bench):
    """A `Bench` whose memory lies on the current CUDA device."""

    device = "cuda"

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        torch.zeros(1, device=self.device)  # the context takes a second: better before a candidate waits for it
        self._graphs: dict[int, Captured] = {}
        self._uncapturable = ""
        self.room: Any = None

    def do_arena(self, order: dict[str, Any], fds: list[int]) -> None:
        old, self.inputs = [getattr(self, name, None) for name in ("inbox", "outbox")], []
        for memory in old:
            if memory is not None:
                memory.close()
        super().do_arena(order, fds)

    def do_pool(self, order: dict[str, Any], fds: list[int]) -> None:
        old, self.room = self.room, None
        self.outs, self.sets, self.extra = [], [], {}
        self._graphs.clear()
        if old is not None:
            old.close()
        torch.cuda.empty_cache()
        super().do_pool(order, fds)

    def do_drop(self, _order: dict[str, Any], _: list[int]) -> None:
        if self._uncapturable:
            self.outs = []

    def do_sprint(self, order: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Replay the graph of `count` calls, made when first asked for; return once the device is done."""
        count = order["count"]
        if not self._uncapturable and count and count not in self._graphs:
            self._capture(count)
        if count and not self._uncapturable:
            captured = self._graphs[count]
            captured.graph.replay()
            torch.cuda.synchronize()
            self.table[: len(captured.pointers)] = captured.pointers
            self.outs = captured.outs
        else:
            super().do_sprint(order, fds)
            torch.cuda.synchronize()
        return {"uncapturable": self._uncapturable}

    def do_segments(self, _order: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Return the allocations in which the outputs of the last sprint lie."""
        found: dict[int, dict[str, Any]] = {}
        for outputs in self.outs:
            for output in (outputs,) if type(outputs) is Tensor else outputs:
                if output.numel() and not any(b <= output.data_ptr() < b + s["nbytes"] for b, s in found.items()):
                    segment = segment_of(output.data_ptr())
                    found[segment.base] = asdict(segment)
        return {"segments": list(found.values())}

    def _capture(self, count: int) -> None:
        sets = self.sets[:count]
        try:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for inputs in sets[:_WARM_CALLS]:
                    self.kernel(*inputs, **self.extra)
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outs = [self.kernel(*inputs, **self.extra) for inputs in sets]
        except Exception as error:  # a kernel may refuse capture by any exception, its own or the driver's
            self._uncapturable = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
            torch.cuda.synchronize()
            return
        pointers = [t.data_ptr() for o in outs for t in ((o,) if type(o) is Tensor else o)]
        self._graphs[count] = Captured(graph, outs, pointers)

    def _poisoned(self, byte: int, sizes: list[int]) -> Any:
        """Call the kernel after blocks of the outputs' sizes were filled and given back to the allocator."""
        if byte:
            held = [torch.full((max(n, 1),), 0xFF ^ byte, dtype=torch.uint8, device="cuda") for n in sizes * 2]
            del held
        return self.kernel(*self.inputs, **self.extra)

    def _export(self, outputs: Any) -> dict[str, Any]:
        """Copy the outputs out as their user would read them: in the current stream's order, waiting for no other."""
        described = super()._export(outputs)
        torch.cuda.synchronize()
        return described

    def _copy_out(self, leaf: Tensor, at: int, nbytes: int) -> None:
        count = nbytes // leaf.element_size()
        raw = torch.as_strided(leaf, (count,), (1,), leaf.storage_offset()).view(torch.uint8)
        self.outbox.bytes_at(at, nbytes).copy_(raw)
