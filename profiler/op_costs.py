"""What each op must move and compute: bytes and FLOPs of one step, seen by a dispatch mode under the module hooks.

FLOPs come from torch's own registry of formulas; bytes from the tensors that pass by. There is no op table here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, shape_wrapper

from .flop_formulas import FLOP_FORMULAS
from .module_ranges import ModuleRanges
from .recording import Limits

Shapes = tuple[tuple[int, ...], ...]

_aten = torch.ops.aten
_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    **{op: shape_wrapper(f) for op, f in FLOP_FORMULAS.items()},  # type: ignore[no-untyped-call]
}
# Two facts a schema does not tell. What these return is not written: allocating moves no bytes.
_ALLOCATIONS = frozenset(
    {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.empty_permuted, _aten.new_empty, _aten.new_empty_strided}
)
# These write their first argument without reading it.
_OVERWRITES = frozenset({_aten.copy_, _aten.fill_, _aten.zero_})


@dataclass(frozen=True)
class OpCost:
    """One call of one op: its tensor inputs (lists unfolded), the bytes it must move and the FLOPs it must do.

    flops: 0 where no formula is known (such an op is bound by its bytes).
    dtype: that of the first floating input.
    """

    shapes: Shapes
    dtypes: tuple[str, ...]
    strides: Shapes
    bytes: int
    flops: int
    dtype: str | None

    def floor_us(self, limits: Limits) -> float:
        """Return the least time one call can take: the slower of moving its bytes and doing its FLOPs."""
        return max(self.memory_us(limits), self.compute_us(limits))

    def memory_us(self, limits: Limits) -> float:
        return self.bytes / (limits.copy_rate(self.bytes) * 1e3)

    def compute_us(self, limits: Limits) -> float:
        rate = limits.matmul_tflop_s.get(self.dtype or "")
        return self.flops / (rate * 1e6) if rate else 0.0

    def source(self, limits: Limits) -> str:
        """Return "memory" or "compute", whichever bounds the op, or "overhead" where it moves and computes nothing."""
        if not self.bytes and not self.flops:
            return "overhead"
        return "compute" if self.compute_us(limits) > self.memory_us(limits) else "memory"


class OpCosts:
    """The costs of one step, found by module path, op and input shapes."""

    def __init__(self, costs: Mapping[tuple[str, str], Sequence[OpCost]] | None = None) -> None:
        self._by_module = costs or {}
        self._anywhere: dict[tuple[str, Shapes], list[OpCost]] = defaultdict(list)
        for (_, op), found in self._by_module.items():
            for cost in found:
                self._anywhere[op, key_shapes(cost.shapes)].append(cost)

    def find(self, module: str, op: str, shapes: Shapes) -> OpCost | None:
        """Return the cost of an op the dispatcher executed, None for one it did not (a parent or an inner call).

        Where one module ran an op on the same shapes at different cost (other strides or constants) the least is
        returned: a floor must not be above what the op can do. `shapes` may lack list arguments: a trace omits some.
        """
        wanted = key_shapes(shapes)
        found = self._find(module, op, wanted)
        if found is None and op.endswith("_"):
            # Under a dispatch mode composites take the out-of-place op where they run in place alone.
            found = self._find(module, op.removesuffix("_"), wanted)
        return found

    def _find(self, module: str, op: str, wanted: Shapes) -> OpCost | None:
        here = self._by_module.get((module, op), ())
        same = [c for c in here if key_shapes(c.shapes) == wanted] or self._anywhere.get((op, wanted), [])
        if not same:
            same = [c for c in here if _is_part(wanted, key_shapes(c.shapes))]
            if len({c.shapes for c in same}) > 1:
                return None
        return min(same, key=lambda c: (c.flops, c.bytes), default=None)


def key_shapes(shapes: Shapes) -> Shapes:
    """Drop scalars: `x + 1` reaches a trace with a 0-dimensional tensor and the dispatch mode with a number."""
    return tuple(shape for shape in shapes if shape)


def _is_part(some: Shapes, whole: Shapes) -> bool:
    remaining = iter(whole)
    return bool(some) and all(shape in remaining for shape in some)


def count_costs(run: Callable[[], None], modules: ModuleRanges) -> OpCosts:
    """Run one step under a dispatch mode and return what its ops cost; whatever the step raises goes through."""
    mode = _CostMode(modules)
    with modules, mode:
        run()
    return OpCosts(mode.costs)


class _CostMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, modules: ModuleRanges) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._modules = modules
        self.costs: dict[tuple[str, str], list[OpCost]] = defaultdict(list)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        module = self._modules.current
        cost = op_cost(func, args, kwargs, out)
        known = self.costs[module.path if module else "", func._schema.name]
        if cost not in known:  # equal layers and steps repeat: memory is bounded by the number of different ops
            known.append(cost)
        return out


def op_cost(func: Any, args: Any, kwargs: Any, out: Any) -> OpCost:
    """Return what one call of an op overload with these arguments and this result costs."""
    inputs, outputs = _tensors((args, kwargs)), _tensors(out)
    formula = _FORMULAS.get(func._overloadpacket)
    floating = next((t.dtype for t in inputs if t.dtype.is_floating_point or t.dtype.is_complex), None)
    return OpCost(
        shapes=tuple(tuple(t.shape) for t in inputs),
        dtypes=tuple(_name(t.dtype) for t in inputs),
        strides=tuple(tuple(t.stride()) if t.layout is torch.strided else () for t in inputs),
        bytes=_moved_bytes(func, args, kwargs, inputs, outputs),
        flops=int(formula(*args, **kwargs, out_val=out)) if formula else 0,
        dtype=_name(floating) if floating else None,
    )


def _moved_bytes(func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> int:
    if func._overloadpacket in _ALLOCATIONS:
        return 0
    written = _written(func, args, kwargs)
    storages = {_storage(t) for t in inputs}
    fresh = [t for t in outputs if _storage(t) not in storages]
    if not written and not fresh:
        return 0  # a view, or a cast or reshape that had nothing to do
    stored = sum(_touched(t) for t in fresh) + sum(_touched(t) for t in written)
    if func._overloadpacket is _aten._grouped_mm:
        return stored + sum(grouped_reads(*inputs[:2])) + sum(_touched(t) for t in inputs[2:])
    # An op with integer tensors beside its data picks by them (a row of an embedding): it need not read more of the
    # data than it writes.
    picks = any(not t.dtype.is_floating_point and not t.dtype.is_complex and t.dtype != torch.bool for t in inputs)
    unread = _written(func, args, kwargs, only_outs=func._overloadpacket not in _OVERWRITES)
    read = 0
    for tensor in inputs:
        if any(tensor is u for u in unread):
            continue
        size = _touched(tensor)
        read += min(size, stored) if picks and tensor.dtype.is_floating_point else size
    return stored + read


def grouped_reads(left: torch.Tensor, right: torch.Tensor) -> tuple[int, int]:
    """Return the bytes that a grouped matmul need read of its operands: of matrices, as many as rows can choose."""
    whole = _touched(right)
    if left.dim() == 2 and right.dim() == 3 and right.shape[0]:
        return _touched(left), min(whole, whole // right.shape[0] * left.shape[0])
    return _touched(left), whole


def _written(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, only_outs: bool = False
) -> list[torch.Tensor]:
    """The tensors the schema says are written; with `only_outs`, those that are pure outputs (`out=`)."""
    found: list[torch.Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        writes = argument.alias_info is not None and argument.alias_info.is_write
        if writes and (argument.is_out or not only_outs):
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += _tensors(value)
    return found


def _touched(tensor: torch.Tensor) -> int:
    """Bytes behind a tensor: an expanded dimension (stride 0) is the same memory again."""
    if tensor.layout is not torch.strided:
        return int(tensor._nnz() * tensor.element_size()) if tensor.is_sparse else 0
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride or not size else 1
    return count * tensor.element_size()


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, list | tuple):
        return [t for item in tree for t in _tensors(item)]
    if isinstance(tree, dict):
        return [t for item in tree.values() for t in _tensors(item)]
    return []


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
