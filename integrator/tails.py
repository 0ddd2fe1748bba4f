"""Make one graph into something that runs, through the tail that was chosen; `Tail` names them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ..extractor.node_ops import is_weight
from .cuda_graphs import GraphReplays, why_not
from .fresh_outputs import split
from .graph_device import CudaGraphs, GraphDevice
from .kernel_site import KernelSite
from .memory_plan import Arena
from .planned_runs import PlannedRuns, why_not_planned
from .results import Tail

logger = logging.getLogger(__name__)

Compiled = Callable[..., Any]

# Tails that make something of a graph for a layout that comes again.
RECORDING: frozenset[Tail] = frozenset({"planned", "cudagraph", "inductor-cudagraph"})
COMPILING: frozenset[Tail] = frozenset({"inductor", "inductor-cudagraph"})
# Tails that trace the graph: what is swapped in must stand that.
TRACING: frozenset[Tail] = COMPILING | {"planned"}


@dataclass
class TailState:
    """What the graphs of one backend share: what captures for them, their memory, kernels' sites, what was refused.

    replays: the captured or planned graphs, for who asks how often they ran. refused: reason to graphs.
    """

    sites: Iterable[KernelSite] = ()
    device: GraphDevice | None = None
    memory: Arena = field(default_factory=Arena)
    replays: list[GraphReplays | PlannedRuns] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


def run_through(
    gm: fx.GraphModule, tail: Tail, inputs: Sequence[Any], state: TailState, *, gradients: bool
) -> Compiled:
    """Return what runs `gm`. inputs: real ones of its first call, or Dynamo's, with symbols for sizes that may vary."""
    if tail in RECORDING:
        reason = _why_not(gm, tail, inputs, gradients=gradients)
        if reason is None:
            made = PlannedRuns(gm, state.memory) if tail == "planned" else _captured(gm, tail, inputs, state)
            state.replays.append(made)
            return made
        state.refused[reason] += 1
        said = "runs without planned memory" if tail == "planned" else "is not captured as a CUDA graph"
        logger.warning("a graph %s: %s", said, reason)
    return compiled(gm, inputs) if tail in COMPILING else gm.forward


def compiled(gm: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
    """Return `gm` through Inductor, which computes equal masks once unless the user has a pass of their own there."""
    import torch._inductor.config as inductor
    from torch._inductor.compile_fx import compile_fx

    from .shared_masks import SharedMasks

    own = {} if inductor.post_grad_custom_pre_pass is not None else {"post_grad_custom_pre_pass": SharedMasks()}
    made: Compiled = compile_fx(gm, list(inputs), config_patches=own)  # type: ignore[assignment]
    return made


def _why_not(gm: fx.GraphModule, tail: Tail, inputs: Sequence[Any], *, gradients: bool) -> str | None:
    if tail == "planned":
        return why_not_planned(inputs, gradients=gradients)
    if tail in COMPILING and any(isinstance(v, torch.SymInt) for v in inputs):
        return "Inductor's code for sizes that vary"
    return why_not(gm, inputs, gradients=gradients)


def _captured(gm: fx.GraphModule, tail: Tail, inputs: Sequence[Any], state: TailState) -> GraphReplays:
    parts = split(gm)
    if state.device is None:
        state.device = CudaGraphs(next(v.device for v in inputs if isinstance(v, torch.Tensor)))
    run: Compiled = parts.inner.forward
    plain: Compiled = gm.forward
    if tail in COMPILING:
        run = compiled(parts.inner, inputs)
        plain = _through(run, parts.outer.forward, parts.inputs)
    weights = [i for i, n in enumerate(n for n in gm.graph.nodes if n.op == "placeholder") if is_weight(n)]
    return GraphReplays(parts, run, plain, weights, state.device, state.sites)


def _through(inner: Compiled, outer: Compiled, places: Sequence[int]) -> Compiled:
    def run(*inputs: Any) -> Any:
        return outer(*inner(*inputs), *[inputs[i] for i in places])

    return run
