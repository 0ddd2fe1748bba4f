"""Run a captured FX graph as CUDA graphs, one for each layout of its inputs that comes again.

Parameters are read where they are, and looked for there before each replay; so is what the graph writes into, a static
cache: each place has a graph of its own. Other inputs are copied into memory of the graph's. Outputs are never
overwritten by a later call: they are copies, or made outside (`fresh_outputs`). What is not captured, and why, is
counted; it runs as it would without us.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..extractor.node_ops import example, is_call, is_weight, node_kinds, ops_of
from ..models.trial import first_line
from .fresh_outputs import MOVE_NOTHING, Split
from .graph_device import GraphDevice, Results
from .kernel_site import KernelSite
from .layouts import Key, Layouts, layout
from .rewrites.attention_backend import BACK_ENDS
from .writes import find_writes

logger = logging.getLogger(__name__)

# Weights that are elsewhere at each call (a functional call with new ones) are not chased for ever.
MOST_MOVES = 3


def why_not(gm: fx.GraphModule, inputs: Sequence[Any], *, gradients: bool) -> str | None:
    """Return why `gm` may not be captured at all, None where it may be tried. inputs: real values, or symbols."""
    if gradients:
        return "the graph is differentiated"
    devices = {v.device for v in inputs if isinstance(v, torch.Tensor)}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        return f"inputs on {', '.join(sorted(map(str, devices))) or 'no device'}, expected one CUDA device"
    return why_not_nodes(gm)


def why_not_nodes(gm: fx.GraphModule) -> str | None:
    """Return what in the graph a replay would not repeat rightly, or would not be worth."""
    growing = {n for n in gm.graph.output_node().all_input_nodes if _grows(n)}
    if growing:
        return f"a cache that grows with each call ({min(n.name for n in growing)})"
    return _why_not_again(gm) or _gives_back(gm)


def may_be_thrown_away(gm: fx.GraphModule) -> bool:
    """Whether nothing is left of a run of `gm` but its outputs: it writes into nothing of others, and draws nothing."""
    return _why_not_again(gm) is None and all(is_call(n) for n in find_writes(gm).memory)


def _why_not_again(gm: fx.GraphModule) -> str | None:
    for node in gm.graph.nodes:
        if not is_call(node):
            continue
        seen = None if node.is_impure() else ops_of(node)
        if seen is None and node.target in BACK_ENDS:
            continue
        if seen is None:
            return f"{node.name} runs code that cannot be looked into"
        for one in seen:
            if one.random:
                return f"{node.name} draws random numbers"
    return None


def _gives_back(gm: fx.GraphModule) -> str | None:
    """Return that an output is what an op wrote into, if it is: it had to be the caller's own tensor, not a copy."""
    at, kinds = find_writes(gm).at, node_kinds(gm)
    waiting = list(gm.graph.output_node().all_input_nodes)
    while waiting:
        node = waiting.pop()
        if node in at and any(n.op == "placeholder" for n in at[node]):
            return f"{node.name} is given back, and writes into an input"
        if kinds.get(node) in MOVE_NOTHING:
            waiting.extend(node.all_input_nodes)
    return None


def _grows(node: fx.Node) -> bool:
    """Whether `node` is an input of the user's with more behind it: what a dynamic cache gives back."""
    if node.op != "call_function" or node.target not in (torch.cat, torch.concat):
        return False
    parts = node.args[0] if node.args else node.kwargs.get("tensors")
    return isinstance(parts, list | tuple) and any(
        isinstance(p, fx.Node) and p.op == "placeholder" and not is_weight(p) and example(p).dim() > 1 for p in parts
    )


@dataclass
class _Captured:
    replay: Callable[[], object]
    statics: tuple[tuple[int, torch.Tensor], ...]
    weights: tuple[tuple[int, int], ...]
    versions: tuple[int, ...]
    results: Results
    counts: tuple[tuple[KernelSite, int, Counter[str]], ...]


class GraphReplays:
    """A callable with the inputs and outputs of an FX graph that replays CUDA graphs of it.

    run: the inner part, as it is to be recorded. plain: the whole, for calls that are not replayed. weights: positions
    of parameters and buffers. sites: kernels that may be inside; replays are counted on them.
    """

    def __init__(
        self,
        parts: Split,
        run: Callable[..., Results],
        plain: Callable[..., Any],
        weights: Iterable[int],
        device: GraphDevice,
        sites: Iterable[KernelSite] = (),
    ) -> None:
        self._parts = parts
        self._run = run
        self._plain = plain
        self._weights = frozenset(weights)
        self._fixed = self._weights.union(parts.written)
        self._device = device
        self._sites = sites
        self._captured: Layouts[_Captured] = Layouts()
        self._moves: Counter[Key] = Counter()
        self.replays = 0
        self.captures = 0
        self.fallbacks: Counter[str] = Counter()

    def __call__(self, *inputs: Any) -> Any:
        with self._device.lock:
            found = self._ready(inputs)
            if isinstance(found, _Captured):
                return self._replay(found, inputs)
            self.fallbacks[found] += 1
        return self._plain(*inputs)

    def _ready(self, inputs: tuple[Any, ...]) -> _Captured | str:
        """Return the graph for these inputs, captured now if it is time, or why there is none."""
        if self._device.busy():
            return "called inside another capture"
        written = [inputs[i] for i in self._parts.written]
        if written and self._shares(written, inputs):
            return "an input shares memory with one that is written into"
        key = (*layout(inputs, self._weights), *[v.data_ptr() for v in written])
        found = self._captured.get(key)
        if found is not None:
            if self._is_current(found, inputs):
                return found
            self._captured.drop(key)
            self._moves[key] += 1
            if self._moves[key] > MOST_MOVES:
                return self._captured.give_up(key, "its weights keep moving")
        return self._captured.why_not_now(key) or self._capture(key, inputs)

    def _shares(self, written: list[torch.Tensor], inputs: tuple[Any, ...]) -> bool:
        """Whether the order of reads and writes would matter between two inputs: to a copy made ahead, or at all."""
        own = {v.untyped_storage().data_ptr() for v in written}
        others = [v for i, v in enumerate(inputs) if i not in self._fixed and isinstance(v, torch.Tensor)]
        return len(own) < len(written) or any(v.untyped_storage().data_ptr() in own for v in others)

    def _is_current(self, found: _Captured, inputs: tuple[Any, ...]) -> bool:
        if any(inputs[i].data_ptr() != pointer for i, pointer in found.weights):
            return False
        # Only what was packed from a weight cares for what has been written into it since.
        return not found.versions or found.versions == self._versions(inputs)

    def _versions(self, inputs: tuple[Any, ...]) -> tuple[int, ...]:
        return tuple(inputs[i]._version for i in sorted(self._weights) if isinstance(inputs[i], torch.Tensor))

    def _capture(self, key: Key, inputs: tuple[Any, ...]) -> _Captured | str:
        given = [(i, v) for i, v in enumerate(inputs) if isinstance(v, torch.Tensor) and i not in self._fixed]
        if any(_overlaps(v) for _, v in given):
            return self._captured.give_up(key, "an input whose elements share memory")
        with torch.inference_mode(False), torch.no_grad():
            statics = tuple(
                (i, torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device)) for i, v in given
            )
            for (_, static), (_, value) in zip(statics, given, strict=True):
                static.copy_(value)
        own = list(inputs)
        for i, static in statics:
            own[i] = static
        sites = list(self._sites)
        before = {site: site.tally() for site in sites}
        start = dict(before)

        def recording() -> None:
            start.update({site: site.tally() for site in self._sites})

        try:
            with _as_before([inputs[i] for i in self._parts.written]):
                replay, results = self._device.record(lambda: tuple(self._run(*own)), recording)
        except Exception as error:  # kernels are generated code, and a capture fails in as many ways as there are ops
            self._set_back(before)
            logger.warning("a CUDA graph could not be captured; its calls run without one: %s", error)
            return self._captured.give_up(key, f"capture failed: {type(error).__name__}: {first_line(error)}")
        counts = tuple((s, s.calls - start[s].calls, s.fallbacks - start[s].fallbacks) for s in start)
        self._set_back(before)
        packing = any(s.kernel.prepare is not None and calls for s, calls, _ in counts)
        weights = tuple((i, inputs[i].data_ptr()) for i in sorted(self._weights) if isinstance(inputs[i], torch.Tensor))
        versions = self._versions(inputs) if packing else ()
        found = _Captured(replay, statics, weights, versions, results, tuple(c for c in counts if c[1] or c[2]))
        self.captures += 1
        return self._captured.keep(key, found)

    @staticmethod
    def _set_back(before: dict[KernelSite, Any]) -> None:
        for site, tally in before.items():
            site.set_tally(tally)

    def _replay(self, found: _Captured, inputs: tuple[Any, ...]) -> Any:
        self._device.enter()
        with torch.inference_mode(False), torch.no_grad():
            for i, static in found.statics:
                static.copy_(inputs[i])
            found.replay()
        if self._parts.written:
            torch.autograd.graph.increment_version([inputs[i] for i in self._parts.written])
        copied = self._parts.copied
        results = [r.clone() if copy else r for r, copy in zip(found.results, copied, strict=True)]
        outputs = self._parts.outer.forward(*results, *[inputs[i] for i in self._parts.inputs])
        self._device.leave()
        self.replays += 1
        for site, calls, fallbacks in found.counts:
            site.calls += calls
            site.fallbacks.update(fallbacks)
        return outputs


@contextmanager
def _as_before(written: Sequence[torch.Tensor]) -> Iterator[None]:
    """A context after which these tensors hold what they held ahead of it: warm runs of a capture write for real."""
    with torch.no_grad():
        kept = [tensor.clone() for tensor in written]
        try:
            yield
        finally:
            for tensor, value in zip(written, kept, strict=True):
                tensor.copy_(value)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements of the tensor may lie at one place, as an expanded one's do: it cannot be copied into."""
    steps = sorted((step, size) for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
    reach = 0
    for step, size in steps:
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False
