"""Where a rewritten graph reads a packed tensor instead of parameters; checked at every call."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...extractor.node_ops import example, is_call
from ..ops import site_called
from .graph_edit import constant, fake_mode_of
from .parameter_packs import Pack
from .rewrite import Setting

_USES = "hotswap_packed_uses"


@dataclass(frozen=True)
class PackedUse:
    """positions: of the pack's parameters among the graph's inputs."""

    pack: Pack
    positions: tuple[int, ...]

    def parameters(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        return [inputs[i] for i in self.positions]


def packed_uses(gm: fx.GraphModule) -> list[PackedUse]:
    """Return the packed tensors the graph reads."""
    found: list[PackedUse] = gm.meta.setdefault(_USES, [])
    return found


def packed(
    gm: fx.GraphModule, setting: Setting, before: fx.Node, places: Sequence[int], rows: int | None = None
) -> fx.Node | str:
    """Return a node for the tensor that holds the parameters at `places` of the inputs, or why there is none."""
    if setting.packs is None:
        return "parameters may not be packed here: nothing could give them back"
    if setting.gradients:
        return "the graph is differentiated"
    parameters = [setting.inputs[i] for i in places]
    if not all(isinstance(p, torch.nn.Parameter) for p in parameters):
        return "a weight that is no plain parameter"
    made = setting.packs.pack([p for p in parameters if isinstance(p, torch.nn.Parameter)], rows)
    if isinstance(made, str):
        return made
    packed_uses(gm).append(PackedUse(made, tuple(places)))
    return constant(gm, before, made.tensor)


def fits(user: fx.Node, old: fx.Node, value: torch.Tensor) -> bool:
    """Whether `user`, and what reads its result, still runs with `value` for `old`, which has other strides."""
    if value.stride() == example(old).stride() or not is_call(user):
        return True
    if any(example(n) is None for n in user.all_input_nodes):
        return False
    args, kwargs = fx.node.map_arg((user.args, user.kwargs), lambda n: value if n is old else example(n))
    site = site_called(user.target, args)
    if site is not None:
        return site.takes(tuple(t for t in args[1:] if isinstance(t, torch.Tensor)))
    try:
        with fake_mode_of(user) or contextlib.nullcontext(), torch.no_grad():
            made: Any = (
                getattr(args[0], str(user.target))(*args[1:], **kwargs)
                if user.op == "call_method"
                else user.target(*args, **kwargs)  # type: ignore[operator]
            )
    except Exception:  # any library's function may stand in the graph; what refuses the new strides keeps the old ones
        return False
    return not isinstance(made, torch.Tensor) or all(fits(reader, user, made) for reader in user.users)
