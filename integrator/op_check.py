"""Run `torch.library.opcheck` on a winner's op before a graph may hold it. A failure is a reason, never an exception."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from ..optimizer.winner import Domain
from .kernel_site import KernelSite
from .ops import SwapOp, add_site

_passed: dict[tuple[str, tuple[Any, ...]], str | None] = {}


def op_problem(site: KernelSite, op: SwapOp, examples: Sequence[torch.Tensor]) -> str | None:
    """Return why `op` may not be used, None when opcheck passes on inputs laid out like `examples` (fake tensors will do).

    Asked once a process for each op and layout.
    """
    layout = tuple((tuple(map(_hint, t.shape)), t.dtype, t.device) for t in examples)
    if (op.name, layout) not in _passed:
        # A site of its own: the check must not show in the counters of the user's model.
        probe = KernelSite(site.winner, site.reference)
        _passed[op.name, layout] = _check(probe, op, examples)
    return _passed[op.name, layout]


def _check(probe: KernelSite, op: SwapOp, examples: Sequence[torch.Tensor]) -> str | None:
    # The graph that is being compiled has a fake mode of its own, which opcheck must neither find nor add guards to.
    with torch._guards.tracing(None), torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            inputs = _inputs(probe, examples)
            torch.library.opcheck(op.kernel, (add_site(probe), *inputs))
        except Exception as error:  # opcheck runs generated code and reports by whatever exception fits
            lines = str(error).strip().splitlines() or ["no message"]
            return f"opcheck: {type(error).__name__}: {lines[0]}"
    if not probe.calls:
        return f"opcheck: the kernel did not run ({', '.join(probe.fallbacks)})"
    return None


def _inputs(probe: KernelSite, examples: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return real tensors like `examples`, with sizes moved into the verified domain."""
    domain = probe.winner.domain
    shapes = [[_hint(size) for size in t.shape] for t in examples]
    if domain is not None:
        _move_into(domain, shapes)
    return [_like(t, shape) for t, shape in zip(examples, shapes, strict=True)]


def _move_into(domain: Domain, shapes: list[list[int]]) -> None:
    for symbol, (low, high) in zip(domain.symbols, domain.sizes, strict=True):
        for i, d in symbol:
            shapes[i][d] = min(max(shapes[i][d], low), high)
    for i, d, size in domain.fixed:
        shapes[i][d] = size


def _like(example: torch.Tensor, shape: list[int]) -> torch.Tensor:
    # Dense in the example's order of dims; between 0.5 and 1.5 roots, logarithms and quotients are all defined.
    order = sorted(range(len(shape)), key=lambda d: _hint(example.stride()[d]), reverse=True)
    made = torch.empty([shape[d] for d in order], dtype=example.dtype, device=example.device)
    made = made.uniform_(0.5, 1.5) if example.dtype.is_floating_point else made.zero_()
    return made.permute([order.index(d) for d in range(len(shape))])


def _hint(size: int | torch.SymInt) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)
