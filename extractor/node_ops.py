"""Turn a node of a captured torch-IR graph into the ATen ops it runs and the kind of work they are.

Nothing is matched by name: a node is executed on its fake example values under a dispatch mode, and the ops seen are
judged by their schema, their tags and torch's own FLOP registry.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import fx
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten

# Memory-bound ops that torch does not tag as pointwise: reductions and normalisations along dims, moves of rows.
_ROW_PACKETS = frozenset(
    {
        aten.sum,
        aten.mean,
        aten.amax,
        aten.amin,
        aten.max,
        aten.min,
        aten.prod,
        aten.any,
        aten.all,
        aten.var,
        aten.var_mean,
        aten.std,
        aten.argmax,
        aten.logsumexp,
        aten.linalg_vector_norm,
        aten.cumsum,
        aten._softmax,
        aten._log_softmax,
        aten.native_layer_norm,
        aten._fused_rms_norm,
        aten.native_group_norm,
        aten.embedding,
        aten.index_select,
        aten.gather,
        aten.cat,
        aten.stack,
        aten._to_copy,
        aten.clone,
    }
)


# Has FLOPs, though the registry lacks it; its formula is the profiler's, which exports that hold this file do without.
_PRODUCTS = frozenset({aten._grouped_mm})

# Views by another name: `reshape` of what it has just copied, which nobody else can see.
_VIEW_PACKETS = frozenset({aten._unsafe_view})


_NAMED = (
    str,  # of a method
    type,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)


class NodeKind(Enum):
    """What a node is to the region finder.

    ANCHOR has FLOPs of its own (matmul, convolution, attention); MEMORY is bound by bytes; VIEW moves none;
    IDENTITY runs no op (dropout in eval); BARRIER stays where it is (mutation, randomness, unknown work).
    """

    ANCHOR = "anchor"
    MEMORY = "memory"
    VIEW = "view"
    IDENTITY = "identity"
    BARRIER = "barrier"


@dataclass(frozen=True)
class SeenOp:
    """An op that was dispatched. random: it draws numbers. writes: into memory that was there before its node ran."""

    op: torch._ops.OpOverload
    random: bool
    writes: bool

    @property
    def stays(self) -> bool:
        """Whether it must stay where it is in a program."""
        return self.random or self.writes


class _SeenOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the ops dispatched below it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[SeenOp] = []
        # Storages made below it, each with a tensor that keeps it: another may not come by its address.
        self._made: dict[int | None, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        writes = any(_storage(t) not in self._made for t in _written(func, args, given))
        there = {_storage(leaf) for leaf in tree_leaves((args, given)) if _is_dense(leaf)}
        result = func(*args, **given)
        if func.namespace != "prim":  # prim.device and the like ask a tensor what it is; they do nothing to it
            self.seen.append(SeenOp(func, draws(func, args, given), writes))
        self._made |= {_storage(t): t for t in tree_leaves(result) if _is_dense(t) and _storage(t) not in there}
        return result


class Decomposing(_SeenOps):  # type: ignore[no-untyped-call]
    """Collects what ops come to by torch's own decompositions, down to those the FLOP registry knows."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "prim" and not _has_flops(func):
            with self:
                parts = decomposition_table.get(func, func.decompose)(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        return super().__torch_dispatch__(func, types, args, kwargs)


def node_kinds(gm: fx.GraphModule) -> dict[fx.Node, NodeKind]:
    """Return the kind of every call node of `gm`; nodes without example values are barriers."""
    return {node: _kind(node, ops_of(node)) for node in gm.graph.nodes if is_call(node)}


def is_pointwise(node: fx.Node) -> bool:
    """Whether every element of what `node` makes depends on its own element of the inputs alone."""
    seen = ops_of(node)
    return seen is not None and all(torch.Tag.pointwise in one.op.tags for one in seen)


def is_call(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method", "call_module")


def example(node: fx.Node) -> Any:
    """Return the fake value Dynamo recorded for `node`, None where it recorded none."""
    return node.meta.get("example_value")


def is_weight(node: fx.Node) -> bool:
    """Whether `node` is a parameter or buffer of the model, as Dynamo's source of the placeholder says."""
    source = str(getattr(node, "_dynamo_source", "") or "")
    return node.op == "get_attr" or isinstance(example(node), torch.nn.Parameter) or "ParamBufferSource" in source


def carry_sources(copies: Mapping[fx.Node, fx.Node]) -> None:
    """Give copies of placeholders what `is_weight` asks of the originals; fx copies no attributes of nodes."""
    for node, copy in copies.items():
        if hasattr(node, "_dynamo_source"):
            copy._dynamo_source = node._dynamo_source


def draws(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call of `op` uses random numbers.

    torch tags every fused attention as random for the sake of its dropout: with the schema's `dropout_p` at 0 it draws
    nothing.
    """
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    for place, argument in enumerate(op._schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            return bool(given != 0.0)
    return True


def _written(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return what this call of `op` writes into."""
    written = []
    for place, argument in enumerate(op._schema.arguments if op._schema.is_mutable else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += tree_leaves(args[place] if place < len(args) else kwargs.get(argument.name))
    return written


def _is_dense(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _storage(tensor: Any) -> int | None:
    """Return what identifies the memory of `tensor`, None where it has none to be known by."""
    return int(tensor.untyped_storage()._cdata) if _is_dense(tensor) else None


def ops_of(node: fx.Node, seeing: type[_SeenOps] = _SeenOps) -> tuple[SeenOp, ...] | None:
    """Return the ATen ops that `node` dispatches, in order; None where it cannot be run on its example values."""
    # An impure node must not be run to be looked at: entering autocast, say, would leave it on.
    if node.op == "call_module" or node.is_impure() or any(example(n) is None for n in node.all_input_nodes):
        return None
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), example)
    asked = _likeness(node, args, kwargs, seeing)
    if asked is not None and asked in _answers:
        return _answers[asked]
    fake_mode = _fake_mode(node)
    seen = seeing()
    try:
        with fake_mode or contextlib.nullcontext(), _quiet(fake_mode), torch.no_grad(), seen:
            if node.op == "call_method":
                getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception:  # any library's function may stand in the graph; what does not run on fakes is a barrier
        return None
    found = tuple(seen.seen)
    if asked is not None:
        if len(_answers) >= _MOST_ANSWERS:
            _answers.clear()
        _answers[asked] = found
    return found


# A model's layers ask the same again and again, and running one op on fakes takes 0.1 to 10 ms.
_answers: dict[tuple[Any, ...], tuple[SeenOp, ...]] = {}
_MOST_ANSWERS = 4096


def _likeness(node: fx.Node, args: Any, kwargs: Any, seeing: type[_SeenOps]) -> tuple[Any, ...] | None:
    """Return what decides the ops of a call: equal calls have equal ones. None where that is more than can be said."""
    if torch._C._is_any_autocast_enabled():
        return None
    leaves, form = tree_flatten((args, kwargs))
    said: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            sizes = (*leaf.shape, *leaf.stride())
            if type(leaf) is not FakeTensor or any(type(size) is not int for size in sizes):
                return None
            said.append((sizes, leaf.dtype, leaf.device, leaf.layout))
        elif isinstance(leaf, (bool, int, float, str, type(None), torch.dtype, torch.device, slice, type(...))):
            said.append((type(leaf), repr(leaf)))
        else:
            return None
    try:
        hash(node.target)
    except TypeError:
        return None
    return (node.op, node.target, form, tuple(said), seeing)


def _fake_mode(node: fx.Node) -> FakeTensorMode | None:
    for value in (example(node), *(example(n) for n in node.all_input_nodes)):
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch._subclasses.FakeTensor):
                return leaf.fake_mode
    return None


@contextlib.contextmanager
def _quiet(fake_mode: FakeTensorMode | None) -> Iterator[None]:
    """Run without adding guards or symbols to the shape environment the graph was traced in."""
    if fake_mode is None or fake_mode.shape_env is None:
        yield
        return
    with fake_mode.shape_env.suppress_guards(), fake_mode.shape_env.ignore_fresh_unbacked_symbols():
        yield


def _kind(node: fx.Node, seen: tuple[SeenOp, ...] | None) -> NodeKind:
    if seen is None or not _gives_tensors(node) or not _importable(node.target):
        return NodeKind.BARRIER
    if not all(_is_view(one.op) or _is_memory(one.op) or _has_flops(one.op) for one in seen):
        # The CPU's fused attention is such an op: unknown to the FLOP registry, but made of matmuls.
        seen = ops_of(node, Decomposing) or seen
    if any(one.stays for one in seen):
        return NodeKind.BARRIER
    if any(_has_flops(one.op) for one in seen):
        return NodeKind.ANCHOR
    if not seen:
        return NodeKind.IDENTITY
    work = [one.op for one in seen if not _is_view(one.op)]
    if not work:
        return NodeKind.VIEW
    return NodeKind.MEMORY if all(_is_memory(op) for op in work) else NodeKind.BARRIER


def _has_flops(op: torch._ops.OpOverload) -> bool:
    return op.overloadpacket in flop_registry or op.overloadpacket in _PRODUCTS


def _importable(target: Any) -> bool:
    """Whether a reference can call `target` by a name; objects that Dynamo makes, of numpy say, have none."""
    if not isinstance(target, types.FunctionType):
        return isinstance(target, _NAMED)
    return getattr(sys.modules.get(target.__module__), target.__name__, None) is target


def _gives_tensors(node: fx.Node) -> bool:
    leaves = tree_leaves(example(node))
    return bool(leaves) and all(isinstance(leaf, torch.Tensor) for leaf in leaves)


def _is_view(op: torch._ops.OpOverload) -> bool:
    if op.overloadpacket in _VIEW_PACKETS:
        return True
    returns = op._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _is_memory(op: torch._ops.OpOverload) -> bool:
    return torch.Tag.pointwise in op.tags or op.overloadpacket in _ROW_PACKETS
