"""Compute once what depends on shapes alone: position ids, masks built in the graph, scalars made into tensors.

Precondition: no argument, parameter, symbolic size or random number goes in. Proof: the very ops are run, once.
"""

from __future__ import annotations

import torch
from torch import fx

from .graph_edit import constant, drop_unused, output_aliases
from .known_values import known_values
from .rewrite import Applied, Notes, Rewrite, Setting


def _apply(gm: fx.GraphModule, setting: Setting, notes: Notes) -> None:
    values = known_values(gm)
    # A constant handed to the user could be written into; one that the graph writes into has no known value.
    given_away = output_aliases(gm)
    for node, value in values.items():
        readers = [user for user in node.users if user not in values]
        if not readers or node in given_away or not isinstance(value, torch.Tensor):
            continue
        folded = constant(gm, node, value, like=node)
        node.replace_all_uses_with(folded, delete_user_cb=lambda user: user in readers)  # noqa: B023 - used at once
        notes.applied.append(Applied(FOLD_SHAPES.name, node.name, f"{node.name}: {tuple(value.shape)} computed once"))
    drop_unused(gm, reversed(list(values)))


FOLD_SHAPES = Rewrite("fold-shapes", "what depends on shapes alone is computed once", _apply)
