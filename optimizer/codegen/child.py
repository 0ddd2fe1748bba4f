"""A Python process that answers one request after another; what it runs may raise, print or die of a signal."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any

Message = dict[str, Any]


class Died(Exception):
    """The child ended before it answered; the message says with what status."""


class Child:
    """Runs `serve` of a module in a process of its own; started when first needed, and again if it died."""

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        self._module = module
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, message: Message) -> Message:
        """Return the answer to a message of numbers, strings, lists, dicts and tensors; raise Died if there is none."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, message)
            return _receive(process.stdout)
        except (EOFError, BrokenPipeError):
            status = process.wait()
            self.close()
            raise Died(f"the process ended with status {status}") from None

    def close(self) -> None:
        """End the process; the next request starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        code = f"from {self._module} import serve; serve()"
        command = [sys.executable, "-c", code]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment)


def answer_requests(answer: Callable[[Message], Message]) -> None:
    """Answer requests on standard input until it ends; whatever else is printed goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    while True:
        try:
            request = _receive(sys.stdin.buffer)
        except EOFError:
            return
        _send(answers, answer(request))


def _send(pipe: IO[bytes], message: Message) -> None:
    import torch

    buffer = io.BytesIO()
    torch.save(message, buffer)
    data = buffer.getvalue()
    pipe.write(struct.pack("<q", len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Message:
    import torch

    head = pipe.read(8)
    if len(head) < 8:
        raise EOFError
    (length,) = struct.unpack("<q", head)
    # Only numbers, strings and tensors: what a candidate may have written is not unpickled at large.
    message: Message = torch.load(io.BytesIO(pipe.read(length)), weights_only=True)
    return message
