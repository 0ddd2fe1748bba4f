"""See which ops of torch a kernel calls: a candidate made of library calls is welcome, and is called what it is.

What is seen is seen in the candidate's own process, which may hide it. It is shown and decides nothing: a library call
wins only by its time, like everything else.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

# Memory for outputs, which every kernel asks torch for.
_ALLOCATES = frozenset({aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided})

NONE_SEEN = "none seen"
_MOST_SHOWN = 8
_NAME = re.compile(r"\w{1,40}::\w{1,80}", re.ASCII)


class LibraryCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the ops that the calling thread dispatches below it: those that compute or copy, by their names."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first use imports torch's compiler, 800 modules, into the candidate's process

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "prim" and not func.is_view and func.overloadpacket not in _ALLOCATES:
            self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def shown(names: Any) -> str:
    """Return what a worker says it saw as a line for a verdict; `names` is whatever it sent."""
    found = sorted({n for n in names if isinstance(n, str) and _NAME.fullmatch(n)}) if isinstance(names, list) else []
    more = f" and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    return ", ".join(found[:_MOST_SHOWN]) + more if found else NONE_SEEN
