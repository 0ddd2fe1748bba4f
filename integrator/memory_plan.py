"""Lay out the intermediates of a graph in one arena: ops write where they are told to, and allocate nothing.

The graph is lowered to ATen for one layout of its inputs. An op that has an `out=` form with a kernel of its own gets
its result's memory from the plan; views of planned memory are made once. What the caller gets, what an op without such
a form returns, and what is computed from inputs by views alone stays as it was, so nothing planned ever escapes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

# Where each buffer begins: a cache line, which is also what the widest vectors want.
ALIGNMENT = 64

# Their `out=` forms are made by allocating a copy first; writing into a tensor is what `copy_` is for.
_COPIES = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)


@dataclass
class _Buffer:
    """Memory of one storage. bytes: its size. first, last: positions of the nodes that first write and last read it."""

    bytes: int
    first: int
    last: int
    offset: int = 0

    def meets(self, other: _Buffer) -> bool:
        return self.first <= other.last and other.first <= self.last


class Arena:
    """Memory shared by all plans of a patch, as large as the largest needs; tensors in it follow when it grows.

    lock: held by the one call that writes into it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        with torch.inference_mode(False):
            self.storage = torch.empty(0, dtype=torch.uint8).untyped_storage()

    def reserve(self, size: int) -> None:
        if self.storage.nbytes() < size:
            self.storage.resize_(size)

    def tensor(self, like: torch.Tensor, offset: int) -> torch.Tensor:
        """Return a tensor laid out as `like`, whose storage begins `offset` bytes into the arena."""
        start = offset // like.element_size() + int(like.storage_offset())
        with torch.inference_mode(False), torch.no_grad():
            return torch.empty(0, dtype=like.dtype).set_(self.storage, start, like.shape, like.stride())


@dataclass(frozen=True)
class MemoryPlan:
    """A graph with planned memory.

    run: takes the graph's inputs. bytes: what it needs of the arena. ops: calls whose results are no views; planned of
    them write into the arena.
    """

    run: fx.GraphModule
    bytes: int
    planned: int
    ops: int


def plan_memory(gm: fx.GraphModule, inputs: Sequence[Any], arena: Arena) -> MemoryPlan:
    """Return `gm` for inputs of just this layout, its intermediates in `arena`. Raises what tracing it raises."""

    def run(*given: Any) -> Any:  # make_fx counts a bound method's self among its arguments
        return gm.forward(*given)

    with torch.no_grad():
        lowered = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    graph: fx.Graph = lowered.graph
    graph.eliminate_dead_code(is_impure_node=_stays)
    order = {node: i for i, node in enumerate(graph.nodes)}
    buffers = _buffers(graph, order)
    size = _place(list(buffers.values()))
    arena.reserve(size)
    made = sum(1 for node in graph.nodes if _makes(node))
    planned = _rewrite(lowered, buffers, arena)
    lowered.recompile()
    return MemoryPlan(lowered, size, planned, made)


def _value(node: fx.Node) -> list[torch.Tensor]:
    return [t for t in tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]


def _storages(node: fx.Node) -> list[int]:
    return [t.untyped_storage()._cdata for t in _value(node)]


def _makes(node: fx.Node) -> bool:
    """Whether the node is a call whose tensors are all in memory of their own: neither a view nor written in place."""
    if not isinstance(node.target, OpOverload) or node.target._schema.is_mutable or not _value(node):
        return False
    given = {s for n in node.all_input_nodes for s in _storages(n)}
    return not given.intersection(_storages(node))


def _buffers(graph: fx.Graph, order: dict[fx.Node, int]) -> dict[int, _Buffer]:
    """Return a buffer for each storage that can be planned, by the storage's key, with the nodes it has to live for."""
    escaping = {s for node in graph.output_node().all_input_nodes for s in _storages(node)}
    found: dict[int, _Buffer] = {}
    for node in graph.nodes:
        if _makes(node) and _written_by(node.target) is not None and not escaping.intersection(_storages(node)):
            for tensor in _value(node):
                storage = tensor.untyped_storage()
                found[storage._cdata] = _Buffer(storage.nbytes(), order[node], order[node])
        for given in node.all_input_nodes:
            for storage_key in _storages(given):
                if storage_key in found:
                    found[storage_key].last = order[node]
    return found


@functools.cache
def _written_by(target: OpOverload) -> OpOverload | None:
    """Return the op that computes what `target` does into given memory, None where there is none worth calling."""
    if target in _COPIES:
        return torch.ops.aten.copy_.default
    for name in target.overloadpacket.overloads():
        other: OpOverload = getattr(target.overloadpacket, name)
        # A generated form computes into new memory and copies from there.
        if torch.Tag.generated not in other.tags and _is_out_form(other, target):
            return other
    return None


def _is_out_form(other: OpOverload, target: OpOverload) -> bool:
    outs = [a for a in other._schema.arguments if a.is_out]
    rest = [(a.name, str(a.type)) for a in other._schema.arguments if not a.is_out]
    returns = target._schema.returns
    return (
        bool(outs)
        and len(outs) == len(returns)
        and all(str(r.type) == "Tensor" for r in returns)
        and rest == [(a.name, str(a.type)) for a in target._schema.arguments]
    )


def _place(buffers: list[_Buffer]) -> int:
    """Give each buffer a place that it shares with none alive at the same time, the largest first; return the size.

    The greedy-by-size order of "Efficient Memory Management for Deep Neural Net Inference" (arXiv 2001.03288).
    """
    placed: list[_Buffer] = []
    for one in sorted(buffers, key=lambda b: -b.bytes):
        offset = 0
        for other in sorted((p for p in placed if p.meets(one)), key=lambda p: p.offset):
            if offset + one.bytes <= other.offset:
                break
            offset = max(offset, _aligned(other.offset + other.bytes))
        one.offset = offset
        placed.append(one)
    return max((b.offset + _aligned(b.bytes) for b in placed), default=0)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _rewrite(gm: fx.GraphModule, buffers: dict[int, _Buffer], arena: Arena) -> int:
    """Make planned ops write into the arena and planned views constants; return how many ops were planned."""
    graph, count, names = gm.graph, 0, _names(gm)
    for node in list(graph.nodes):
        values = _value(node)
        if node.op != "call_function" or not values or any(s not in buffers for s in _storages(node)):
            continue
        fixed = [arena.tensor(v, buffers[v.untyped_storage()._cdata].offset) for v in values]
        if _makes(node):
            _write_into(gm, node, [_constant(gm, node, next(names), t) for t in fixed])
            count += 1
        elif _stays(node):
            continue  # it runs, on planned memory; its result is another name of what it wrote into
        elif not isinstance(node.meta["val"], torch.Tensor):
            continue  # several views at once: their getitems are constants
        else:
            node.replace_all_uses_with(_constant(gm, node, next(names), fixed[0]))
            graph.erase_node(node)
    graph.eliminate_dead_code(is_impure_node=_stays)
    return count


def _stays(node: fx.Node) -> bool:
    return node.is_impure() or (isinstance(node.target, OpOverload) and node.target._schema.is_mutable)


def _write_into(gm: fx.GraphModule, node: fx.Node, buffers: list[fx.Node]) -> None:
    """Call the out form of `node` before it. Nobody reads the node itself then: a tuple's items are constants, too."""
    op = _written_by(node.target)
    assert op is not None
    with gm.graph.inserting_before(node):
        if op is torch.ops.aten.copy_.default:
            gm.graph.call_function(op, (buffers[0], node.args[0]))
        else:
            outs = [a.name for a in op._schema.arguments if a.is_out]
            gm.graph.call_function(op, node.args, {**node.kwargs, **dict(zip(outs, buffers, strict=True))})
    if isinstance(node.meta["val"], torch.Tensor):
        node.replace_all_uses_with(buffers[0])


def _constant(gm: fx.GraphModule, before: fx.Node, name: str, tensor: torch.Tensor) -> fx.Node:
    # A plain attribute: a buffer would be asked for by everything that walks modules.
    setattr(gm, name, tensor)
    with gm.graph.inserting_before(before):
        made = gm.graph.create_node("get_attr", name)
    made.meta["val"] = before.meta["val"]
    return made


def _names(gm: fx.GraphModule) -> Iterator[str]:
    number = 0
    while True:
        name = f"_planned_{number}"
        if not hasattr(gm, name):
            yield name
        number += 1
