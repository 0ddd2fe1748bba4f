"""Call code that is not ours, a model's forward or a factory, and turn what it raises into one line that says where."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from .errors import EnvironmentMissing, HotswapError, ModelRaised, ResourceExhausted
from .workload import Call


def run_call(model: Any, call: Call) -> Any:
    """Return the model's output for `call`; raise ModelRaised, ResourceExhausted or EnvironmentMissing."""
    try:
        return model(*call.args, **call.kwargs)
    except Exception as error:  # the user's model may raise anything
        raise explained(error, f"{type(model).__name__}({described(call)})") from error


def described(call: Call) -> str:
    """Return the call's arguments, tensors as their shape."""

    def one(value: Any) -> str:
        shape = getattr(value, "shape", None)
        return type(value).__name__ if shape is None else str(list(shape))

    return ", ".join([*map(one, call.args), *(f"{name}={one(value)}" for name, value in call.kwargs.items())])


def explained(error: BaseException, what: str, near: Path | None = None) -> HotswapError:
    """Return the error of ours that `error`, raised by foreign code, means.

    what: the code that raised, as the user would name it. near: the file whose line is shown, None for the innermost.
    """
    if isinstance(error, HotswapError):
        return error
    where = raised_at(error, near)
    said = first_line(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return EnvironmentMissing(
            f"{what}: needs the module {error.name!r}, which is not installed ({where}); install it and try again"
        )
    if out_of_memory(error):
        return ResourceExhausted(
            f"{what}: out of memory at {where} ({said}); use a smaller model, --batch or --seq-len"
        )
    return ModelRaised(
        f"{what}: raised {type(error).__name__}: {said} at {where}; "
        "it must run without error before it can be made faster"
    )


def out_of_memory(error: BaseException) -> bool:
    """Tell whether memory ran out. torch's CPU allocator has no class of its own, hence the text."""
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def raised_at(error: BaseException, near: Path | None = None) -> str:
    """Return `file:line` where `error` arose: in `near` if it passed there, else in the last code not torch's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown line"
    # This file's own frame is not an answer, and torch's last line says less than the line that called it.
    outside = [f for f in frames if f.filename != __file__ and "torch" not in Path(f.filename).parts]
    own = [f for f in outside if near is not None and Path(f.filename) == near]
    frame = (own or outside or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


def first_line(error: BaseException) -> str:
    """Return the first line of what `error` says, shortened to 200 characters; "no message" where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no message"
