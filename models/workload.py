"""A workload: a model plus the example calls it is to be made fast for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .errors import InputError

if TYPE_CHECKING:
    from torch import nn

Mode = Literal["inference", "training"]


@dataclass(frozen=True)
class Call:
    """One example call: `model(*args, **kwargs)`, and how often it is served relative to the others."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    name: str = "call"


@dataclass(frozen=True)
class Workload:
    """A live model with its example calls. Not a record: it holds the user's objects and is never saved.

    spec: the text the model was asked for by, None for a model handed over in Python.
    """

    model: nn.Module
    calls: tuple[Call, ...]
    mode: Mode = "inference"
    spec: str | None = None


def as_calls(example_inputs: Any) -> tuple[Call, ...]:
    """Return the calls that `example_inputs` means.

    A dict is kwargs, a tuple is args, a tensor is one argument, a Call is itself, a list holds Calls.
    """
    if isinstance(example_inputs, Call):
        return (example_inputs,)
    if isinstance(example_inputs, list):
        if not example_inputs or not all(isinstance(c, Call) for c in example_inputs):
            kinds = ", ".join(sorted({type(c).__name__ for c in example_inputs})) or "nothing"
            raise InputError(f"example_inputs: a list must hold hotswap.Call objects, got {kinds}")
        names = [c.name for c in example_inputs]
        return tuple(
            Call(c.args, c.kwargs, c.weight, c.name if names.count(c.name) == 1 else f"{c.name}{i}")
            for i, c in enumerate(example_inputs)
        )
    if isinstance(example_inputs, Mapping):
        return (Call(kwargs=dict(example_inputs)),)
    if isinstance(example_inputs, tuple):
        return (Call(args=example_inputs),)
    return (Call(args=(example_inputs,)),)


def own_copy(tree: Any) -> Any:
    """Return arguments with tensors and objects of their own, aliasing among them kept: a model may write into them."""
    import copy

    import torch
    from torch.utils import _pytree

    memo: dict[int, Any] = {}
    for leaf in _pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
            memo[id(leaf)] = leaf.detach().clone().requires_grad_()  # deepcopy refuses tensors that are not leaves
    return copy.deepcopy(tree, memo)
