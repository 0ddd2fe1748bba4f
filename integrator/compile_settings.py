"""Hold Dynamo to what regions mean, while it compiles our frames and nobody else's.

Floats of a model are constants of its regions; by default Dynamo makes one that changes an input. Set at the start of
a compile and put back at its end: as a context around every call the same would cost 20 us a call.
"""

from __future__ import annotations

import threading
from typing import Any

import torch._dynamo
from torch._dynamo.callback import CallbackArgs, callback_handler

_SETTINGS: dict[str, Any] = {"specialize_float": True}


class _Thread(threading.local):
    depth = 0


_thread = _Thread()
_saved: list[dict[str, Any]] = []


class our_compile:  # noqa: N801 - used as a context manager, like contextlib's own
    """A context: what Dynamo compiles inside, on this thread, is compiled with our settings."""

    def __enter__(self) -> None:
        _thread.depth += 1
        # `torch._dynamo.reset()` forgets all callbacks.
        if _start not in callback_handler.start_callbacks:
            callback_handler.register_start_callback(_start)
            callback_handler.register_end_callback(_end)

    def __exit__(self, *_: object) -> None:
        _thread.depth -= 1


def _start(_: CallbackArgs) -> None:
    if _thread.depth:
        config = torch._dynamo.config
        _saved.append({name: getattr(config, name) for name in _SETTINGS})
        for name, value in _SETTINGS.items():
            setattr(config, name, value)


def _end(_: CallbackArgs) -> None:
    while _saved:
        for name, value in _saved.pop().items():
            setattr(torch._dynamo.config, name, value)
