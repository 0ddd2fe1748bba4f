"""The reference in fp64: its core-ATen graph with every floating cast, constant and factory dtype set to fp64.

Calling the reference on fp64 inputs would not do: models cast to fp32 inside, and that cast must not survive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, fx

from .chunks import Change, Runner, Symbol, chunked

_ATEN = torch.ops.aten
# half_to_float=True asks for fp32 from half, which fp64 input makes an error; in fp64 both mean the same.
_SOFTMAXES = (_ATEN._softmax.default, _ATEN._log_softmax.default)
_MATMULS = {_ATEN.mm.default: 0, _ATEN.bmm.default: 0, _ATEN.addmm.default: 1, _ATEN.baddbmm.default: 1}
# These take some of their input: that many outputs are no reduction.
_SELECT = {
    _ATEN.slice.Tensor, _ATEN.select.int, _ATEN.embedding.default, _ATEN.index.Tensor, _ATEN.gather.default,
    _ATEN.index_select.default, _ATEN.split_with_sizes.default, _ATEN.unbind.int, _ATEN.as_strided.default,
}  # fmt: skip


class Oracle:
    """The reference traced at one set of shapes. terms: the longest sum in it.

    symbols: the task's size symbols, along which a reference too large for memory may be evaluated in chunks.
    """

    def __init__(
        self,
        reference: Callable[..., tuple[Tensor, ...]],
        inputs: Sequence[Tensor],
        symbols: Sequence[Symbol] = (),
    ) -> None:
        self.chunks = chunked(lambda given: _trace(reference, given, "fake"), inputs, symbols, _InDouble)
        self._gm = self.chunks.whole if self.chunks else _trace(reference, inputs, "real")
        self.terms = _terms(self._gm)

    def __call__(self, inputs: Sequence[Tensor], change: Change | None = None) -> tuple[Tensor, ...]:
        """Return the outputs in fp64; integers and booleans as they are.

        change: made of every input, or of every piece of it, on the way; None takes them as they are.
        """
        change = change or _double
        if self.chunks:
            return self.chunks.run(inputs, _InDouble, change)
        outputs = _InDouble(self._gm).run(*[change(t) for t in inputs])
        return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def _trace(
    reference: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], mode: Literal["real", "fake"]
) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.nn.attention import SDPBackend, sdpa_kernel

    # Fused attention is code for one dtype, on a GPU for halves alone; what it computes is these few ops.
    with sdpa_kernel(SDPBackend.MATH):
        return make_fx(reference, decomposition_table=_decompositions(), tracing_mode=mode)(*inputs)


class _InDouble(Runner):
    def run_node(self, n: fx.Node) -> Any:
        return _double(super().run_node(n))

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = _double_dtypes(args), _double_dtypes(kwargs)
        if self.device is not None:
            kwargs = {k: self.device if isinstance(v, torch.device) else v for k, v in kwargs.items()}
        if target in _SOFTMAXES:
            args = (*args[:2], False)
        return super().call_function(target, args, kwargs)


def _double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(torch.float64) if value.is_floating_point() else value
    if isinstance(value, tuple | list):
        return type(value)(_double(v) for v in value)
    return value


def _double_dtypes(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    if isinstance(value, tuple | list):
        return type(value)(_double_dtypes(v) for v in value)
    if isinstance(value, dict):
        return {k: _double_dtypes(v) for k, v in value.items()}
    return value


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())


def _terms(gm: fx.GraphModule) -> int:
    """Return the length of the longest reduction: inputs a value is made from, by counting elements of every node."""
    most = 1
    for node in gm.graph.nodes:
        out = node.meta.get("val", node.meta.get("tensor_meta"))
        out = out[0] if isinstance(out, tuple | list) and out else out
        shape = getattr(out, "shape", None)
        if node.op != "call_function" or shape is None or node.target in _SELECT:
            continue
        given = [_shape(a) for a in node.all_input_nodes]
        if node.target in _MATMULS:
            most = max(most, int(given[_MATMULS[node.target]][-1]))
        elif node.target is _ATEN.convolution.default:
            most = max(most, _count(given[1]) // max(int(given[1][0]), 1))
        else:
            # A normalisation returns as many values as it gets, so the last dimension is the least it may sum over.
            last = max((int(s[-1]) for s in given if s), default=1)
            ratio = max((_count(s) for s in given), default=1) // max(_count(shape), 1)
            most = max(most, ratio, last if _sums_in_place(node) else 1)
    return most


def _sums_in_place(node: fx.Node) -> bool:
    return node.target in _SOFTMAXES or node.target in (
        _ATEN.native_layer_norm.default, _ATEN.native_group_norm.default, _ATEN.cumsum.default,
    )  # fmt: skip


def _shape(node: fx.Node) -> Sequence[int]:
    value = node.meta.get("val", node.meta.get("tensor_meta"))
    return tuple(getattr(value, "shape", ()))


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= int(size)
    return count
