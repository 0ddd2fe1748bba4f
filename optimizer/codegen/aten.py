"""The table of ops: each core-ATen overload with the handler that writes it as instructions of a loop program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from .axes import Unsupported
from .build import Builder, Operand, Tensor

Handler = Callable[["Translation", fx.Node], Any]
TABLE: dict[Any, Handler] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name a loop program uses for a dtype; raise Unsupported for one it has none for."""
    name = str(dtype).removeprefix("torch.")
    if dtype.is_complex or (dtype.is_floating_point and dtype.itemsize == 1) or name.startswith("q"):
        raise Unsupported(f"dtype {name}: no arithmetic for it")
    return name


class Translation:
    """Values of graph nodes on their way to a loop program."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.values: dict[fx.Node, Any] = {}

    def operand(self, argument: Any) -> Operand:
        if isinstance(argument, fx.Node):
            value = self.values[argument]
            if isinstance(value, Tensor):
                return value
        elif isinstance(argument, bool | int | float):
            return argument
        raise Unsupported(f"argument {argument}: neither a tensor nor a number")

    def tensor(self, argument: Any) -> Tensor:
        operand = self.operand(argument)
        if not isinstance(operand, Tensor):
            raise Unsupported(f"argument {argument}: a tensor was expected")
        return operand


def register(*ops: Any) -> Callable[[Handler], Handler]:
    def put(handler: Handler) -> Handler:
        TABLE.update(dict.fromkeys(ops, handler))
        return handler

    return put


def result_dtype(node: fx.Node) -> str:
    return dtype_name(node.meta["val"].dtype)


def meta(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def dims_of(tensor: Tensor, dims: Any) -> list[int]:
    rank = len(tensor.dims)
    given = range(rank) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    return [d % rank for d in given] if rank else []


def argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)
