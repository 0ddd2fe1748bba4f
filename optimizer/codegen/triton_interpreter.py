"""Run Triton candidates without a GPU: Triton's interpreter in a child process, repaired where it computes wrongly.

The interpreter keeps bfloat16 as unsigned integers and does arithmetic on those, truncates where a GPU rounds, has no
device library, and reads out of bounds without a word or dies of it. It finds wrong logic on small shapes; it cannot
show the absence of races, and its times mean nothing.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from .child import Child, Died, Message, answer_requests
from .triton_repair import repair


class Misbehaved(Exception):
    """The candidate raised, returned no tensors, or took the interpreter down; the message says which."""


class Interpreter:
    """Interprets one candidate after another in a child."""

    def __init__(self) -> None:
        self._child = Child(__name__, {"TRITON_INTERPRET": "1"})

    def run(self, source: str, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return what the candidate's `kernel` makes of CPU tensors; raise Misbehaved where it makes nothing."""
        try:
            answer = self._child.ask({"source": source, "inputs": list(inputs)})
        except Died as died:
            raise Misbehaved(f"{died}, as after a wild access") from None
        if "error" in answer:
            raise Misbehaved(answer["error"])
        return tuple(answer["outputs"])

    def close(self) -> None:
        self._child.close()


def serve() -> None:
    """Answer with the outputs of each candidate, or with what it raised."""
    repair()
    loaded: dict[str, Callable[..., Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        answer_requests(lambda request: _answer(request, loaded, Path(folder)))


def _answer(request: Message, loaded: dict[str, Callable[..., Any]], folder: Path) -> Message:
    source = request["source"]
    try:
        if source not in loaded:
            loaded[source] = _load(source, folder / f"candidate_{len(loaded)}.py")
        result = loaded[source](*request["inputs"])
        return {"outputs": [result] if isinstance(result, Tensor) else list(result)}
    except Exception as error:  # the candidate's own: whatever it raises is the answer
        lines = str(error).strip().splitlines()
        return {"error": f"{type(error).__name__}: {lines[-1] if lines else ''}"}


def _load(source: str, path: Path) -> Callable[..., Any]:
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel: Callable[..., Any] = module.kernel
    return kernel
