"""Find what a captured graph writes into: memory of the caller's own (a static cache), or what it made itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..extractor.node_ops import NodeKind, example, is_call, node_kinds, ops_of


@dataclass(frozen=True)
class Writes:
    """at: each node that writes, with the nodes whose memory that may be: a tensor, its views, what it is a view of."""

    at: Mapping[fx.Node, frozenset[fx.Node]]

    @cached_property
    def memory(self) -> frozenset[fx.Node]:
        """All nodes whose memory is written into somewhere in the graph."""
        return frozenset().union(*self.at.values())

    def between(self, first: fx.Node, last: fx.Node, memory: fx.Node) -> bool:
        """Whether `memory` is written into behind `first` and ahead of `last`."""
        node = first.next
        while node is not last and node.op != "root":
            if memory in self.at.get(node, ()):
                return True
            node = node.next
        return False


def find_writes(gm: fx.GraphModule) -> Writes:
    """Return what `gm` writes into. Code that cannot be looked into is taken to write into all that it is given."""
    targets = {node: written for node in gm.graph.nodes if is_call(node) and (written := _targets(node))}
    if not targets:
        return Writes({})
    same = _Sets()
    for node, kind in node_kinds(gm).items():
        # What an op that writes gives back is what it wrote into.
        for source in targets.get(node, node.all_input_nodes if may_alias(kind) else ()):
            same.join(node, source)
    together = same.groups()
    return Writes({node: frozenset().union(*(together[n] for n in written)) for node, written in targets.items()})


def may_alias(kind: NodeKind | None) -> bool:
    """Whether what a node of this kind gives may share memory with what it takes."""
    # `to` and `contiguous` give their input back where there is nothing to do; then they ran no op, and are IDENTITY.
    return kind not in (NodeKind.MEMORY, NodeKind.ANCHOR)


class _Sets:
    """Disjoint sets of nodes."""

    def __init__(self) -> None:
        self._sets: dict[fx.Node, set[fx.Node]] = {}

    def join(self, one: fx.Node, other: fx.Node) -> None:
        mine, theirs = (self._sets.setdefault(n, {n}) for n in (one, other))
        if mine is not theirs:
            mine |= theirs
            for node in theirs:
                self._sets[node] = mine

    def groups(self) -> Mapping[fx.Node, set[fx.Node]]:
        return self._sets


def _targets(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the inputs of `node` that it writes into."""
    tensors = [n for n in node.all_input_nodes if any(True for _ in _storages(n))]
    seen = ops_of(node)
    if seen is None:
        return tuple(tensors)
    if not any(one.op._schema.is_mutable for one in seen):
        return ()
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), example)
    watched = _Written()
    with _fake_mode(tensors), torch.no_grad(), watched:
        if node.op == "call_method":
            getattr(args[0], str(node.target))(*args[1:], **kwargs)
        else:
            node.target(*args, **kwargs)  # type: ignore[operator]
    return tuple(n for n in tensors if watched.storages.intersection(_storages(n)))


class _Written(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the storages that ops dispatched below it write into."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                leaves = tree_leaves(given.get(argument.name))
                self.storages |= {t.untyped_storage()._cdata for t in leaves if isinstance(t, torch.Tensor)}
        return func(*args, **(kwargs or {}))


def _storages(node: fx.Node) -> Iterator[int]:
    for leaf in tree_leaves(example(node)):
        if isinstance(leaf, torch.Tensor):
            yield leaf.untyped_storage()._cdata


@contextlib.contextmanager
def _fake_mode(nodes: list[fx.Node]) -> Iterator[None]:
    """Run on the example values of `nodes` without adding guards or symbols to where the graph was traced."""
    leaves = [leaf for n in nodes for leaf in tree_leaves(example(n))]
    mode = next((t.fake_mode for t in leaves if isinstance(t, torch._subclasses.FakeTensor)), None)
    with contextlib.ExitStack() as stack:
        if mode is not None:
            stack.enter_context(mode)
            if mode.shape_env is not None:
                stack.enter_context(mode.shape_env.suppress_guards())
        yield
