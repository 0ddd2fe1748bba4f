"""Compile Triton candidates for a GPU that need not be there, and read what each kernel takes of it.

A child process imports the candidate and calls its `kernel` on tensors without data; every launch compiles and runs
nothing. Registers and stack come from the machine code, shared memory from Triton. Several children work at a time.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from ...models.errors import EnvironmentMissing
from ...models.record import Record
from .child import Child, Died, Message, answer_requests

REGISTERS_A_PROCESSOR = 65536  # of every NVIDIA GPU since Kepler; a program that needs more cannot start


@dataclass(frozen=True)
class Target(Record):
    """A GPU to compile for. capability: 90 for 9.0. shared: bytes a program may have."""

    capability: int = 90
    processors: int = 132
    shared: int = 232448

    @classmethod
    def here(cls) -> Target | None:
        """Return the current device as a target, None where there is none."""
        import torch

        if not torch.cuda.is_available():
            return None
        its: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
        return cls(its.major * 10 + its.minor, its.multi_processor_count, its.shared_memory_per_block_optin)


@dataclass(frozen=True)
class Tensor(Record):
    """What a kernel is compiled for, of one input."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]


Cases = Sequence[Sequence[Tensor]]


@dataclass(frozen=True)
class Compiled(Record):
    """One compiled kernel. stack: bytes a thread keeps in memory because registers ran out. shared: bytes a program."""

    name: str
    registers: int
    stack: int
    shared: int
    warps: int

    def trouble(self, target: Target) -> str | None:
        """Return why it should not be tried on the target, None if nothing is against it."""
        if self.stack:
            return f"{self.name}: {self.stack} bytes of registers spilled"
        if self.shared > target.shared:
            return f"{self.name}: {self.shared} bytes of shared memory, {target.shared} are there"
        if self.registers * self.warps * 32 > REGISTERS_A_PROCESSOR:
            return f"{self.name}: {self.registers} registers for each of {self.warps * 32} threads"
        return None


@dataclass(frozen=True)
class Build(Record):
    """What became of one candidate: its kernels, or the error that compiling it ended with.

    launches: hash of machine code, grids and numbers; candidates in which it is equal do the same on these shapes.
    seconds: all of it.
    """

    kernels: tuple[Compiled, ...]
    error: str | None
    launches: str
    seconds: float

    def trouble(self, target: Target) -> str | None:
        return self.error or next((why for k in self.kernels if (why := k.trouble(target))), None)


class Compilers:
    """Processes that compile, one candidate each at a time; they start with the first candidate."""

    def __init__(self, workers: int | None = None) -> None:
        """Raises EnvironmentMissing where Triton, or the disassembler it brings, is not installed."""
        disassembler()
        self._count = workers or os.cpu_count() or 1
        self._idle: SimpleQueue[Child] = SimpleQueue()
        for _ in range(self._count):
            self._idle.put(Child(__name__))

    def builds(self, sources: Sequence[str], cases: Cases, target: Target) -> list[Build]:
        """Return what became of each source, compiled for the launches that all cases lead to."""
        with ThreadPoolExecutor(self._count) as threads:
            return list(threads.map(lambda source: self._build(source, cases, target), sources))

    def _build(self, source: str, cases: Cases, target: Target) -> Build:
        started, child = time.monotonic(), self._idle.get()
        try:
            tensors = [[t.to_dict() for t in case] for case in cases]
            return Build.from_dict(child.ask({"source": source, "cases": tensors, "target": target.to_dict()}))
        except Died as died:
            return Build((), f"compiling: {died}", "", time.monotonic() - started)
        finally:
            self._idle.put(child)

    def close(self) -> None:
        """End the processes."""
        for _ in range(self._count):
            self._idle.get().close()


def serve() -> None:
    """Answer with what became of each source."""

    def answer(request: Message) -> Message:
        cases = [[Tensor.from_dict(t) for t in case] for case in request["cases"]]
        return compile_one(request["source"], cases, Target.from_dict(request["target"])).to_dict()

    answer_requests(answer)


def disassembler() -> Path:
    """Return the tool that reads registers from machine code."""
    import importlib.util

    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise EnvironmentMissing("compiling for a GPU: triton is not installed; pip install 'hotswap[triton]'")
    path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not path.exists():
        raise EnvironmentMissing(f"compiling for a GPU: {path} is not there; this triton was built without it")
    return path


def compile_one(source: str, cases: Cases, target: Target) -> Build:
    """Return what becomes of one source. Only in a process that runs no kernels: it replaces Triton's driver."""
    import torch

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, offline(target) as made:
        path = Path(folder) / "candidate.py"
        path.write_text(source, encoding="utf-8")
        error = None
        try:
            kernel = _load(path)
            for case in cases:
                kernel(
                    *(
                        torch.empty_strided(t.shape, t.stride, dtype=getattr(torch, t.dtype), device="meta")
                        for t in case
                    )
                )
        except Exception as raised:  # the candidate's own, or the compiler's about it
            lines = [line for line in str(raised).splitlines() if line.strip()]
            error = f"{type(raised).__name__}: {lines[-1].strip() if lines else ''}"
    return Build(tuple(dict.fromkeys(k for k, _ in made)), error, _launches(made), time.monotonic() - started)


def _launches(made: list[tuple[Compiled, str]]) -> str:
    return hashlib.sha256("\n".join(text for _, text in made).encode()).hexdigest()


def _load(path: Path) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("candidate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


@contextmanager
def offline(target: Target) -> Iterator[list[tuple[Compiled, str]]]:
    """Let launches compile for `target` and do nothing else; yields a list that fills with kernels and launches."""
    import torch
    import triton
    from triton.runtime.jit import JITFunction

    made: list[tuple[Compiled, str]] = []
    launch = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        compiled = launch(self, *args, grid=grid, warmup=True, **options)
        numbers = [a for a in (*args, *options.values()) if isinstance(a, int | float)]
        made.append((_described(compiled), f"{_code(compiled)} {grid} {numbers}"))
        return compiled

    def properties(_: Any = None) -> Any:
        return SimpleNamespace(
            major=target.capability // 10,
            minor=target.capability % 10,
            multi_processor_count=target.processors,
            shared_memory_per_block_optin=target.shared,
        )

    kept, driver = torch.cuda.get_device_properties, triton.runtime.driver._active
    triton.runtime.driver.set_active(_driver(target))
    JITFunction.run = run
    setattr(torch.cuda, "get_device_properties", properties)  # noqa: B010  mypy knows its type
    try:
        yield made
    finally:
        JITFunction.run = launch
        torch.cuda.get_device_properties = kept
        triton.runtime.driver._active = driver


def _driver(target: Target) -> Any:
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class Offline(DriverBase):  # type: ignore[misc]
        """A driver that knows its target and can launch nothing."""

        def __init__(self) -> None:
            pass

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            return "void*"

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", target.capability, 32)

        def get_active_torch_device(self) -> torch.device:
            return torch.device("meta")

        def get_current_device(self) -> int:
            return 0

        def set_current_device(self, device: int) -> None:
            pass

        def get_current_stream(self, device: int) -> int:
            return 0

        def get_benchmarker(self) -> Any:
            return lambda function, quantiles=None, **_: [0.0] * len(quantiles or [0])

        def get_empty_cache_for_benchmark(self) -> torch.Tensor:
            return torch.empty(1)

        def get_device_interface(self) -> None:
            return None

    return Offline()


def _code(compiled: Any) -> str:
    """Return the assembly without what it says of the source file."""
    text: str = compiled.asm["ptx"].partition("\t.section\t.debug")[0]
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith((".loc", ".file", "//")))


_USAGE = re.compile(r"Function (\w+):\s+REG:(\d+) STACK:(\d+)")


def _described(compiled: Any) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(disassembler()), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = _USAGE.search(text)
    if found is None:
        raise EnvironmentMissing(f"{command[0]} said nothing of registers: {text.strip()[:200]}")
    metadata = compiled.metadata
    return Compiled(metadata.name, int(found[2]), int(found[3]), metadata.shared, metadata.num_warps)
