"""Lower a reference to a loop program: trace it to core ATen, then translate op by op through `aten.TABLE`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from . import pointwise as pointwise
from . import reductions as reductions
from . import views as views
from .aten import TABLE, Translation, dtype_name
from .axes import Unsupported as Unsupported
from .build import Tensor
from .finish import Wanted, finish
from .program import Input, LoopProgram

Reference = Callable[..., Any]


def lower(reference: Reference, inputs: Sequence[torch.Tensor], alike: Sequence[tuple[int, int]] = ()) -> LoopProgram:
    """Return the loop program that computes `reference`; raise Unsupported naming the op that is not one loop nest.

    The program holds for every size, not for those of `inputs`; sizes below 1 cannot be traced. alike: pairs of inputs
    that always have the same shape, where nothing in the region tells.
    """
    for position, tensor in enumerate(inputs):
        if 0 in tensor.shape:
            raise Unsupported(f"example input {position} is empty: its axes cannot be told apart")
    graph = trace(reference, inputs).graph
    translation = Translation()
    described = []
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for position, (node, tensor) in enumerate(zip(placeholders, inputs, strict=True)):
        name = dtype_name(tensor.dtype)
        described.append(Input(f"x{position}", name, tensor.dim()))
        translation.values[node] = translation.builder.load(position, tensor.shape, name)
    for left, right in alike:
        one, other = (translation.values[placeholders[n]] for n in (left, right))
        for a, b in zip(one.dims, other.dims, strict=True):
            translation.builder.axes.unite(a, b, "inputs of one shape")
    for node in graph.nodes:
        if node.op == "call_function":
            _translate(translation, node)
        elif node.op == "get_attr":
            raise Unsupported(f"{node.target}: a tensor constant made inside the region")
    (returned,) = next(n for n in graph.nodes if n.op == "output").args
    single = not isinstance(returned, tuple | list)
    wanted = [_wanted(translation, node) for node in ([returned] if single else returned)]
    return finish(translation.builder, described, wanted, single=single)


# `pointwise`, `reductions` and `views` are imported because they fill the table.


def trace(reference: Reference, inputs: Sequence[torch.Tensor]) -> fx.GraphModule:
    """Return the core-ATen graph of one call, without mutations of intermediates."""
    pure = torch.func.functionalize(reference, remove="mutations")

    def called(*args: torch.Tensor) -> Any:  # hides arguments with defaults, which make_fx would ask for
        return pure(*args)

    try:
        with torch.no_grad():
            traced = make_fx(called, decomposition_table=dict(core_aten_decompositions()), tracing_mode="fake")(*inputs)
    except RuntimeError as error:  # shapes that depend on values, ops without a fake, state of a transform left open
        raise Unsupported(f"the region cannot be traced: {str(error).splitlines()[0]}") from error
    traced.graph.eliminate_dead_code()
    return traced


def _translate(translation: Translation, node: fx.Node) -> None:
    handler = TABLE.get(node.target)
    if handler is None:
        raise Unsupported(f"{node.target}: not expressible as one loop nest")
    translation.values[node] = handler(translation, node)


def _wanted(translation: Translation, node: Any) -> Wanted:
    tensor = translation.values.get(node) if isinstance(node, fx.Node) else None
    if not isinstance(tensor, Tensor):
        raise Unsupported(f"the region returns {type(node).__name__}, not tensors only")
    strides = node.meta["val"].stride()
    return Wanted(tensor, tuple(sorted(range(len(strides)), key=lambda d: (-strides[d], d))))
