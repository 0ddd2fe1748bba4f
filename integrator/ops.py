"""Make a winner a `torch.library` op that graphs can hold: traceable, and differentiable through the original ops.

Two ops a winner. `hotswap::NAME(site, *inputs)` decides: it is composite, so a trace with gradients or autocast sees
the original ops. `hotswap::NAME_kernel` is the opaque call a gradient-free trace keeps. `site` is a number, so that two
patched models share the op and nothing else.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .kernel_site import Inputs, KernelSite, Outputs
from .kernel_source import source_hash

# Lives as long as the process: graphs hold its ops.
_library: Any = torch.library.Library("hotswap", "FRAGMENT")  # type: ignore[no-untyped-call]
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})

# Weak: a site belongs to the patch that made it, and with it its packed weights must be able to go.
_sites: list[weakref.ref[KernelSite]] = []


@dataclass(frozen=True)
class SwapOp:
    """A registered op: `decide` goes into graphs, `kernel` is what traces keep; both take a site's number first."""

    name: str
    decide: Any
    kernel: Any


_ops: dict[str, SwapOp] = {}


def add_site(site: KernelSite) -> int:
    """Return the number under which ops reach `site`; the caller keeps the site alive."""
    _sites.append(weakref.ref(site))
    return len(_sites) - 1


def swap_op(site: KernelSite, inputs: int, outputs: int) -> SwapOp:
    """Return the op of the site's winner, registered at first use. inputs, outputs: how many tensors go in and out."""
    name = op_name(site)
    if name not in _ops:
        _ops[name] = _register(name, inputs, outputs)
    return _ops[name]


def site_called(target: object, arguments: Sequence[Any]) -> KernelSite | None:
    """Return the site that a call in a graph reaches, None where it calls something else."""
    if any(op.decide is target or op.kernel is target for op in _ops.values()):
        return _site(arguments[0])
    return None


def op_name(site: KernelSite) -> str:
    """Return a name no other region and no other source has, that a reader of a trace recognises."""
    task = re.sub(r"\W+", "_", site.winner.task).strip("_").lower() or "region"
    both = source_hash(f"{site.winner.fingerprint}:{site.kernel.hash}")
    return f"{task}_{both[:12]}"


def _register(name: str, inputs: int, outputs: int) -> SwapOp:
    takes = ", ".join(["int site", *(f"Tensor input{i}" for i in range(inputs))])
    gives = "Tensor" if outputs == 1 else "(" + ", ".join(["Tensor"] * outputs) + ")"
    opaque = f"{name}_kernel"
    _library.define(f"{opaque}({takes}) -> {gives}", tags=(torch.Tag.needs_fixed_stride_order,))
    _library.define(f"{name}({takes}) -> {gives}")
    kernel = getattr(torch.ops.hotswap, opaque).default
    # Not CompositeExplicitAutograd: that would also answer for meta and fake tensors.
    for key in ("CPU", "CUDA"):
        _library.impl(opaque, _shaped(_run, outputs), key)
    torch.library.register_fake(f"hotswap::{opaque}", _shaped(_fake, outputs), lib=_library)

    def decide(number: int, *tensors: torch.Tensor) -> Any:
        site = _site(number)
        if _is_plain(tensors):
            return unwrap(site(tensors))
        reason = "inside a functorch transform" if _in_functorch() else site.needs_original(tensors)
        return (
            kernel(number, *tensors) if reason is None else unwrap(site.fall_back(tensors, f"{reason} (while traced)"))
        )

    unwrap = _unwrap_one if outputs == 1 else tuple
    _library.impl(name, decide, "CompositeImplicitAutograd")
    return SwapOp(name, getattr(torch.ops.hotswap, name).default, kernel)


def _site(number: int) -> KernelSite:
    site = _sites[number]()
    if site is None:
        raise RuntimeError(
            f"hotswap op called for site {number}, whose patch is gone; expected the patch to outlive its graphs"
        )
    return site


def _shaped(run: Callable[[KernelSite, Inputs], Outputs], outputs: int) -> Callable[..., Any]:
    def implementation(number: int, *tensors: torch.Tensor) -> Any:
        made = run(_site(number), tensors)
        return made[0] if outputs == 1 else made

    return implementation


def _run(site: KernelSite, tensors: Inputs) -> Outputs:
    return site(tensors)


def _fake(site: KernelSite, tensors: Inputs) -> Outputs:
    """Return outputs of the reference's metadata in memory of their own, whatever the reference aliases."""
    with torch.no_grad():
        made = site.reference(*tensors)
    return tuple(torch.empty_strided(o.shape, o.stride(), dtype=o.dtype, device=o.device) for o in made)


def _unwrap_one(outputs: Outputs) -> torch.Tensor:
    return outputs[0]


def _is_plain(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no trace, mode or transform looks on, so that the kernel may read memory at once."""
    return not looked_on() and all(type(t) in _PLAIN for t in tensors)


def looked_on() -> bool:
    """Whether a dispatch mode or a functorch transform is at work around the caller."""
    return bool(torch._C._len_torch_dispatch_stack()) or _in_functorch()


def _in_functorch() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None
