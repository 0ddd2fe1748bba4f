"""For a mask that is passed in: a second form of the graph for the case that it hides nothing, chosen at each call.

Precondition: one integer, bool or float argument decides the masks of attention, with shapes. Proof: with that argument
all ones (zeros, for a float one that is added), the graph's own ops give a mask that is all true, causal or a sliding
window; and every call compares the argument with that value before it takes this form. Its recorded value is never
looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...extractor.node_ops import example, is_weight
from .attention_call import attention_calls
from .known_values import known_values
from .plain_attention import without_masks
from .rewrite import PREFIX, Notes
from .window_attention import Where, with_windows

NAME = "mask-choice"
SWITCH = PREFIX + NAME


@dataclass(frozen=True)
class Condition:
    """What must hold of one input at a call: every element equals `value`. position: of the graph's inputs."""

    position: int
    value: int

    def flag(self, inputs: tuple[Any, ...]) -> torch.Tensor:
        """Return whether it holds as a bool scalar, where the input is; nothing waits for it."""
        tensor: torch.Tensor = inputs[self.position]
        return tensor.all() if tensor.dtype == torch.bool and self.value else (tensor == self.value).all()

    def holds(self, inputs: tuple[Any, ...]) -> bool:
        """Wait for the device, and for what was launched on it before; return whether it holds."""
        return bool(self.flag(inputs))


def conditions(gm: fx.GraphModule) -> Iterator[tuple[Condition, fx.Node]]:
    """Yield what may be asked of each input that masks of attention are computed from."""
    masks = {c.mask for c in attention_calls(gm) if c.mask is not None}
    found = {n for mask in masks for n in _inputs_of(mask)}
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    for position, node in enumerate(placeholders):
        if node in found and isinstance(example(node), torch.Tensor) and not is_weight(node):
            for value in (0, 1) if example(node).dtype.is_floating_point else (1,):
                yield Condition(position, value), node


def specialise(gm: fx.GraphModule, notes: Notes, windows: Where | None = None) -> Condition | None:
    """Change `gm` into the form for a mask that hides nothing; return its condition, None where there is no such form.

    windows: where what remains of a mask, a sliding window, may be called as one. What is not found leaves the graph as
    it was.
    """
    for condition, node in conditions(gm):
        fake = example(node)
        if not all(type(size) is int for size in fake.shape) or fake.layout is not torch.strided:
            continue
        device = fake.device
        assumed = torch.full(tuple(fake.shape), condition.value, dtype=fake.dtype, device=device)
        tried = Notes()
        values = known_values(gm, {node: assumed})
        found = without_masks(gm, values, tried, NAME)
        if windows is not None:
            found += with_windows(gm, values, tried, NAME, windows)
        if found:
            notes.applied += tried.applied
            return condition
    return None


def _inputs_of(node: fx.Node) -> set[fx.Node]:
    """Return the placeholders that `node` is computed from."""
    seen: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting.extend(one.all_input_nodes)
    return {n for n in seen if n.op == "placeholder"}
