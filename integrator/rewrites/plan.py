"""Apply the rewrites to one captured graph, in their order, each unless it is switched off."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import fx

from ...extractor.node_ops import carry_sources
from .attention_backend import ATTENTION_BACKEND
from .drop_copies import DROP_COPIES
from .fold_shapes import FOLD_SHAPES
from .grouped_heads import GROUPED_HEADS
from .mask_choice import SWITCH as MASK_CHOICE
from .mask_choice import Condition, specialise
from .merge_linears import MERGE_LINEARS
from .pad_rows import PAD_ROWS
from .plain_attention import PLAIN_ATTENTION
from .rewrite import Notes, Rewrite, Setting
from .window_attention import WINDOW_ATTENTION, Where
from .written_attention import WRITTEN_ATTENTION

# Masks first, as others ask whether there is one; the back end last, when the call is what it will be. Ahead of them
# all, and of the choice by a passed mask, what is written out becomes a call.
REWRITES: tuple[Rewrite, ...] = (
    PLAIN_ATTENTION,
    WINDOW_ATTENTION,
    FOLD_SHAPES,
    DROP_COPIES,
    GROUPED_HEADS,
    MERGE_LINEARS,
    PAD_ROWS,
    ATTENTION_BACKEND,
)
SWITCHES: dict[str, str] = {r.switch: r.title for r in (WRITTEN_ATTENTION, *REWRITES)} | {
    MASK_CHOICE: "attention without a passed mask in calls where it hides nothing"
}


@dataclass(frozen=True)
class Forms:
    """The forms of one graph. general is right for every call; special, where there is one, if its condition holds."""

    general: fx.GraphModule
    special: tuple[Condition, fx.GraphModule] | None
    notes: Notes


def rewrite(gm: fx.GraphModule, setting: Setting, off: Collection[str] = ()) -> Forms:
    """Return the forms of `gm`, which becomes the general one, with the rewrites whose switches are not in `off`."""
    notes = Notes()
    special: tuple[Condition, fx.GraphModule] | None = None
    if WRITTEN_ATTENTION.switch not in off:
        WRITTEN_ATTENTION.apply(gm, setting, notes)
    if MASK_CHOICE not in off:
        tried = copy_graph(gm)
        condition = specialise(tried, notes, None if WINDOW_ATTENTION.switch in off else Where())
        if condition is not None:
            _apply_all(tried, setting, off, Notes())
            special = (condition, tried)
    _apply_all(gm, setting, off, notes)
    return Forms(gm, special, notes)


def _apply_all(gm: fx.GraphModule, setting: Setting, off: Collection[str], notes: Notes) -> None:
    for one in REWRITES:
        if one.switch not in off:
            one.apply(gm, setting, notes)
    gm.graph.lint()
    gm.recompile()


def copy_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """Return a graph module of the same attributes whose graph may be changed."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(gm.graph, copies))
    carry_sources(copies)
    return fx.GraphModule(gm, graph)
