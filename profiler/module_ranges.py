"""Know which module is running: a stack of module calls, each optionally inside a named profiler range.

The hooks are the process-wide ones, filtered by instance: per-instance hooks would change what runs
(nn.TransformerEncoderLayer leaves its fast path when it finds hooks on itself) and would show in the user's modules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

RangeMaker = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True)
class ModuleName:
    """path: dotted name in the model, empty for the model itself; class_name: the module's class."""

    path: str
    class_name: str

    @property
    def label(self) -> str:
        """The text of the module's range in a trace; unique within one model."""
        return f"nn.Module: {self.path or '(model)'} [{self.class_name}]"


def _no_range(_: str) -> AbstractContextManager[Any]:
    return nullcontext()


class ModuleRanges:
    """Follows the calls of one model's modules while entered; leaves no hook behind, whatever the model raises.

    open_range: called with a module's label around each of its calls, e.g. `torch.profiler.record_function`.
    """

    def __init__(self, model: nn.Module, open_range: RangeMaker = _no_range) -> None:
        self._names = {id(module): name for module, name in _named(model)}
        self._open_range = open_range
        self._handles: list[RemovableHandle] = []
        self._local = threading.local()

    @property
    def by_label(self) -> dict[str, ModuleName]:
        return {name.label: name for name in self._names.values()}

    @property
    def current(self) -> ModuleName | None:
        """The innermost module now running on this thread, None outside the model."""
        stack = self._stack()
        return self._names[stack[-1][0]] if stack else None

    def __enter__(self) -> Self:
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._close_down_to(0)

    def _stack(self) -> list[tuple[int, AbstractContextManager[Any]]]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[tuple[int, AbstractContextManager[Any]]] = self._local.stack
        return stack

    def _before(self, module: nn.Module, _args: Any) -> None:
        name = self._names.get(id(module))
        if name is not None:
            opened = self._open_range(name.label)
            opened.__enter__()
            self._stack().append((id(module), opened))

    def _after(self, module: nn.Module, _args: Any, _output: Any) -> None:
        stack = self._stack()
        depth = next((d for d in range(len(stack) - 1, -1, -1) if stack[d][0] == id(module)), None)
        if depth is not None:
            self._close_down_to(depth)

    def _close_down_to(self, depth: int) -> None:
        stack = self._stack()
        while len(stack) > depth:
            stack.pop()[1].__exit__(None, None, None)


def _named(model: nn.Module) -> list[tuple[nn.Module, ModuleName]]:
    """Every module once, under its first name; a torch.compile wrapper lends its place to what it wraps."""
    named = []
    for path, module in model.named_modules():
        if isinstance(getattr(module, "_orig_mod", None), nn.Module):
            continue
        kept = ".".join(part for part in path.split(".") if part != "_orig_mod")
        named.append((module, ModuleName(kept, str(getattr(module, "original_name", type(module).__name__)))))
    return named
