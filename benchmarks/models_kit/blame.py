"""Say which arm failed, and of what: a CUDA error ends the process, and the row is measured again without its arm."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


class ArmLost(Exception):
    """An arm failed in a way that this process does not outlive, or too late to leave it out. note: what it was."""

    def __init__(self, arm: str, note: str) -> None:
        super().__init__(f"{arm}: {note}")
        self.arm = arm
        self.note = note


class Watch:
    """Which arm is at work, kept in a file too (where there is one): a process that dies says nothing more."""

    def __init__(self, file: Path | None = None) -> None:
        self.arm: str | None = None
        self._file = file

    def at(self, arm: str | None) -> None:
        self.arm = arm
        if self._file is not None:
            self._file.write_text(arm or "", encoding="utf-8")

    @contextmanager
    def blaming(self, arm: str | None = None) -> Iterator[None]:
        """A context whose exceptions are an ArmLost of the arm that was at work last. arm: the first one."""
        if arm is not None:
            self.at(arm)
        try:
            yield
        except ArmLost:
            raise
        except Exception as error:  # whatever compilers and kernels raise: the row is measured again without the arm
            if self.arm is None:
                raise
            raise ArmLost(self.arm, cause(error)) from error
        self.at(None)


def cause(error: BaseException) -> str:
    """Return "Type: message (folder/file.py:line)" of the exception behind `error`, the innermost one there is."""
    while True:
        # Dynamo raises a backend's exception as its own "from None", with the real one in an attribute.
        inner = getattr(error, "inner_exception", None) or error.__cause__
        inner = inner or (None if error.__suppress_context__ else error.__context__)
        if not isinstance(inner, BaseException):
            break
        error = inner
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno})" if frames else ""
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {message[:300]}{place}"


def device_is_lost() -> bool:
    """Whether the GPU answers no more in this process, as after an illegal access."""
    if not torch.cuda.is_available():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
