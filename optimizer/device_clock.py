"""Time a function on a GPU by replaying a CUDA graph of many calls: device time, without the launch path of the host.

A lone short kernel between two events measures the launch; a graph of hundreds of calls measures the kernel. The calls
go round over several input sets whose memory together is larger than the last-level cache, and outputs are held until
their set comes round again, so neither what is read nor what is written is met in the cache.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# Inputs together are at least this many times the last-level cache: then a set is gone before it comes round again.
COLD = 2.0
# One replay lasts about this long: its launch (some 10 us) must not count, and a block is a whole number of replays.
_REPLAY_SECONDS = 0.01
_MOST_CALLS = 512
_WARM_CALLS = 3


class NotCapturable(Exception):
    """A function cannot be recorded in a CUDA graph (it synchronises, allocates outside the pool, ...); one line."""


def cold_sets(bytes_per_set: int, cache_bytes: int, *, times: float = COLD) -> int:
    """Return how many input sets of `bytes_per_set` are at least `times` the cache; two at least."""
    return max(2, math.ceil(times * cache_bytes / max(bytes_per_set, 1)))


@dataclass
class Replay:
    """A graph of `calls` calls, going round over its input sets. Holds the sets and the outputs of the last round."""

    graph: torch.cuda.CUDAGraph
    calls: int
    device: torch.device
    _held: list[Any] = field(repr=False)
    _replay_us: float = field(default=0.0, repr=False)

    def block(self, seconds: float) -> float:
        """Return microseconds a call over a block of replays that lasts at least about `seconds`."""
        replays = max(1, math.ceil(seconds * 1e6 / self._one_replay_us()))
        return self._elapsed_us(replays) / (replays * self.calls)

    def outputs(self) -> list[Any]:
        """Return what the last call on each input set returned, in the order of the sets."""
        return list(self._held)

    def _one_replay_us(self) -> float:
        if not self._replay_us:
            self._elapsed_us(1)
            self._replay_us = self._elapsed_us(1)
        return self._replay_us

    def _elapsed_us(self, replays: int) -> float:
        with torch.cuda.device(self.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            for _ in range(replays):
                self.graph.replay()
            end.record()
            end.synchronize()
            return float(begin.elapsed_time(end)) * 1e3


def capture(
    function: Callable[..., Any], sets: Sequence[Sequence[torch.Tensor]], *, calls: int | None = None
) -> Replay:
    """Return a replay of `calls` calls of `function`, one input set after another; rounded up to whole rounds.

    sets: the arguments of a call each, CUDA tensors of one device. calls: by default as many as last about 10 ms.
    Raise NotCapturable with the reason where the function cannot be recorded. What the function itself raises when it
    is run outside a capture passes through.
    """
    device = sets[0][0].device
    with torch.cuda.device(device), torch.no_grad():
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            us = _warm(function, sets)
        torch.cuda.current_stream().wait_stream(stream)
        wanted = calls or min(_MOST_CALLS, max(1, round(_REPLAY_SECONDS * 1e6 / us)))
        rounds = max(1, math.ceil(wanted / len(sets)))
        graph, held = _record(function, sets, rounds)
    return Replay(graph, rounds * len(sets), device, held)


def _warm(function: Callable[..., Any], sets: Sequence[Sequence[torch.Tensor]]) -> float:
    """Compile and load what the function needs, and return roughly the microseconds of a call."""
    for inputs in sets[:_WARM_CALLS]:
        function(*inputs)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for n in range(_WARM_CALLS):
        function(*sets[n % len(sets)])
    end.record()
    end.synchronize()
    return max(float(begin.elapsed_time(end)) * 1e3 / _WARM_CALLS, 1.0)


def _record(
    function: Callable[..., Any], sets: Sequence[Sequence[torch.Tensor]], rounds: int
) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    held: list[Any] = [None] * len(sets)
    # A collection during the capture could free a tensor of another pool, which is an error there.
    collecting = gc.isenabled()
    gc.disable()
    try:
        # Only what this thread does counts: compilers of other threads may touch the device meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(rounds):
                for number, inputs in enumerate(sets):
                    held[number] = function(*inputs)
    except RuntimeError as error:  # CUDA's answer to what a capture does not allow, at the call or at the end of it
        # Where the end of a capture raises, torch leaves the capture's stream the current one.
        torch.cuda.set_stream(stream)
        torch.cuda.synchronize()
        raise NotCapturable(str(error).strip().splitlines()[0][:200]) from error
    finally:
        if collecting:
            gc.enable()
    return graph, held


def interleaved(arms: Sequence[Callable[[float], float]], *, blocks: int, seconds: float) -> list[list[float]]:
    """Return microseconds a call of each arm in each of `blocks` rounds: a block of every arm in every round.

    arms: functions of the block's least length in seconds, such as `Replay.block`. Who begins moves on each round, so
    nobody always follows the same rival.
    """
    taken: list[list[float]] = [[] for _ in arms]
    for turn in range(blocks):
        for step in range(len(arms)):
            arm = (turn + step) % len(arms)
            taken[arm].append(arms[arm](seconds))
    return taken
