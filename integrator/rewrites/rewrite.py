"""What a rewrite is: a name that can be switched off, and a function that changes a graph where it can prove it may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import fx

from .parameter_packs import ParameterPacks

# Of rewrites the patch switches these, as it switches kernels by the fingerprint of their region.
PREFIX = "rewrite:"


@dataclass(frozen=True)
class Applied:
    """One change that was made. place: the node that was changed."""

    rewrite: str
    place: str
    what: str


@dataclass(frozen=True)
class NotApplied:
    """One change that could not be made, and why."""

    rewrite: str
    place: str
    reason: str


@dataclass
class Notes:
    """What a round of rewrites did to one graph."""

    applied: list[Applied] = field(default_factory=list)
    left: list[NotApplied] = field(default_factory=list)


@dataclass(frozen=True)
class Setting:
    """What rewrites may know of the graph's surroundings.

    packs: where parameters may be packed; None where they may not be touched. gradients: whether the graph will be
    differentiated. inputs: the placeholders' real values, parameters among them.
    """

    packs: ParameterPacks | None = None
    gradients: bool = False
    inputs: tuple[object, ...] = ()


@dataclass(frozen=True)
class Rewrite:
    """A change of the graph. title: what it does, for a reader."""

    name: str
    title: str
    apply: Callable[[fx.GraphModule, Setting, Notes], None]

    @property
    def switch(self) -> str:
        return PREFIX + self.name
