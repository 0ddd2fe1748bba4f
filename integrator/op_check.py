"""Run `torch.library.opcheck` on a winner's op before a graph may hold it. Failing is a reason, never an exception."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from ..optimizer.winner import Domain
from .kernel_site import KernelSite
from .ops import SwapOp, add_site

# What an op must stand when it is only called, and when AOTAutograd traces it: 0.02 s and 0.3 s an op.
_CALLED = ("test_schema", "test_autograd_registration", "test_faketensor")
_TRACED = (*_CALLED, "test_aot_dispatch_dynamic")

_answers: dict[tuple[str, str, bool], str | None] = {}


def op_problem(site: KernelSite, op: SwapOp, examples: Sequence[torch.Tensor], *, traced: bool = True) -> str | None:
    """Return why `op` may not be used, None when opcheck passes on inputs like `examples` (fake tensors will do).

    traced: whether the op must also stand AOTAutograd, as under the Inductor tail. Asked once a process for each op and
    device; sizes are moved into the verified domain.
    """
    asked = (op.name, examples[0].device.type, traced)
    if asked not in _answers:
        _answers[asked] = _check(site, op, examples, _TRACED if traced else _CALLED)
    return _answers[asked]


def _check(site: KernelSite, op: SwapOp, examples: Sequence[torch.Tensor], tests: tuple[str, ...]) -> str | None:
    # A site of its own: the check must not show in the counters of the user's model.
    probe = KernelSite(site.winner, site.reference)
    # The graph that is being compiled has a fake mode of its own, which opcheck must not find or add guards to; and
    # the call that is being compiled may be one in which the kernel rightly stands back (grad, autocast).
    quiet = torch.autocast(examples[0].device.type, enabled=False)
    with (
        torch._guards.tracing(None),
        torch.no_grad(),
        quiet,
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            inputs = _inputs(probe, examples)
            torch.library.opcheck(op.kernel, (add_site(probe), *inputs), test_utils=tests)
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
    # Dense in the example's order of dims. Between 0.5 and 1.5 roots, logarithms and quotients are all defined; a mask
    # that shows nothing would make nan, which opcheck takes for a difference.
    order = sorted(range(len(shape)), key=lambda d: _hint(example.stride()[d]), reverse=True)
    made = torch.empty([shape[d] for d in order], dtype=example.dtype, device=example.device)
    made = made.uniform_(0.5, 1.5) if example.dtype.is_floating_point else made.fill_(example.dtype == torch.bool)
    return made.permute([order.index(d) for d in range(len(shape))])


def _hint(size: int | torch.SymInt) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)
