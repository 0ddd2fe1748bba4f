"""Our arm of a row: a small search through the real proposers, each candidate checked before it is timed."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotswap.benchmarks.kernels_kit.rivals import not_as_asked, unlike
from hotswap.benchmarks.kernels_kit.rows import Row
from hotswap.extractor.load_task import LoadedTask, load_function
from hotswap.extractor.task import ShapeCase, Task, TensorSpec
from hotswap.optimizer.attempt import Attempt
from hotswap.optimizer.candidate import Candidate, Proposer
from hotswap.optimizer.codegen.triton_compile import Build, Target
from hotswap.optimizer.judge.oracle import Oracle
from hotswap.optimizer.judge.target import Target as Wanted
from hotswap.optimizer.judge.target import misfit, targets
from hotswap.optimizer.proposers.offered import proposers as everybody
from hotswap.optimizer.proposers.template import Template
from hotswap.optimizer.verdict import Verdict

# Rows of the check against fp64, which runs on the CPU: enough for several programs and a tail.
_CHECKED_ROWS = 37
_REPEATS = 100


@dataclass(frozen=True)
class FixedTask(LoadedTask):
    """A task whose inputs are given, not read from a folder."""

    given: tuple[Tensor, ...] = ()

    def inputs(self, case_index: int = 0, generator: torch.Generator | None = None) -> list[Tensor]:
        return list(self.given)


@dataclass(frozen=True)
class Found:
    """What the search ended with. call: None where nothing was right, with the reason. tried: (proposer, knobs, us or
    the reason) of every candidate.
    """

    call: Callable[..., tuple[Tensor, ...]] | None
    proposer: str | None
    knobs: dict[str, Any]
    label: str
    source: str | None
    seconds: float
    tried: tuple[tuple[str, dict[str, Any], float | str], ...]
    reason: str | None


def as_task(row: Row, inputs: Sequence[Tensor], device: str) -> FixedTask:
    """Return the row as a task on `device` with one recorded shape, that of `inputs`."""
    family = row.family
    specs = tuple(
        TensorSpec(
            name,
            tuple(t.shape),
            t.stride(),
            0,
            str(t.dtype).removeprefix("torch."),
            "weight" if name in family.weights else "activation",
        )
        for name, t in zip(family.names, inputs, strict=True)
    )
    case = ShapeCase(row.shape, specs, 1, 1.0, 0.0)
    kind = "anchor" if family.kind == "anchor" else "memory"
    task = Task(
        family.task, row.title, kind, device, (), family.names, len(tuple(family.reference(*inputs))), (case,), (),
        0.0, 0.0, 1.0, 1.0,
    )  # fmt: skip
    return FixedTask(Path("nowhere"), task, family.reference, "", {}, tuple(inputs))


class Search:
    """The search of one row. timed: device microseconds of a call of a function, quickly."""

    def __init__(self, row: Row, loaded: FixedTask, folder: Path, timed: Callable[[Callable[..., Any]], float]) -> None:
        self._row, self._loaded, self._folder, self._timed = row, loaded, folder, timed
        self._history: list[Attempt] = []
        self._tried: list[tuple[str, dict[str, Any], float | str]] = []
        self._best: tuple[float, Candidate, Callable[..., Any]] | None = None
        self._wanted = tuple(row.family.reference(*loaded.given))

    def run(self, proposers: Sequence[Proposer], seconds: float) -> Found:
        """Return the fastest right candidate found within `seconds`; proposers take turns."""
        started = time.perf_counter()
        waiting = deque(proposers)
        while waiting and (time.perf_counter() - started < seconds or not self._history):
            proposer = waiting.popleft()
            candidate = proposer.propose(self._loaded.task, self._history)
            if candidate is not None:
                waiting.append(proposer)
                self._attempt(candidate)
        taken = time.perf_counter() - started
        if self._best is None:
            told = [f"{p.name}: {p.reason}" for p in proposers if getattr(p, "reason", None)]  # type: ignore[attr-defined]
            failed = [f"{name}: {us}" for name, _, us in self._tried]
            return Found(
                None, None, {}, "", None, taken, tuple(self._tried), "; ".join(told + failed) or "nobody had anything"
            )
        _, candidate, call = self._best
        label = getattr(
            sys.modules.get(call.__module__), "LABEL", ""
        )  # functions of a candidate file know their module
        return Found(
            call, candidate.proposer, candidate.knobs, label, candidate.source, taken, tuple(self._tried), None
        )

    def _attempt(self, candidate: Candidate) -> None:
        us, problem, call = None, None, None
        try:
            call = self._loaded_kernel(candidate)
            problem = self._problem(call)
            us = None if problem else self._timed(call)
        except Exception as error:  # a candidate may raise anything: it is rejected, with what it said
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        self._tried.append((candidate.proposer, dict(candidate.knobs), us if us is not None else str(problem)))
        verdict = Verdict(
            us is not None, None if us is not None else "check", problem, (), (), None, candidate.hash, "none", {}
        )
        task, now, number = self._loaded.task, time.time(), len(self._history)
        known = (number, task.name, task.fingerprint, candidate.hash, candidate.parent, candidate.proposer)
        self._history.append(Attempt(*known, candidate.knobs, now, now, verdict, us, us is not None, {}))
        if us is not None and call is not None and (self._best is None or us < self._best[0]):
            self._best = (us, candidate, call)

    def _loaded_kernel(self, candidate: Candidate) -> Callable[..., tuple[Tensor, ...]]:
        path = self._folder / f"candidate_{candidate.hash[:16]}.py"
        path.write_text(candidate.source, encoding="utf-8")
        kernel = load_function(path, "kernel")
        prepare = getattr(sys.modules[kernel.__module__], "prepare", None)

        def called(*inputs: Tensor) -> tuple[Tensor, ...]:
            made: Any = kernel(*inputs, packed=packed(inputs)) if prepare else kernel(*inputs)
            return made if isinstance(made, tuple) else (made,)

        # Packing is done once for a weight in use; a replay over several sets has one packing a set.
        kept: dict[tuple[int, ...], Any] = {}

        def packed(inputs: Sequence[Tensor]) -> Any:
            key = tuple(t.data_ptr() for t in inputs)
            if key not in kept:
                kept[key] = prepare(*inputs)
            return kept[key]

        called.__module__ = kernel.__module__
        return called

    def _problem(self, call: Callable[..., tuple[Tensor, ...]]) -> str | None:
        """Return what is wrong with a kernel: on cut rows against fp64, at full size against eager in norm."""
        device = str(self._loaded.given[0].device)
        inputs, wanted = self._exact
        got = [t.cpu() for t in call(*(t.to(device) for t in inputs))]
        for number, (out, target) in enumerate(zip(got, wanted, strict=True)):
            if out.shape != target.reference.shape or out.dtype != target.reference.dtype:
                return f"output {number}: {out.dtype} {tuple(out.shape)}, expected {tuple(target.reference.shape)}"
        whole = call(*self._loaded.given)
        return not_as_asked(self._row, whole) or misfit(got, wanted) or unlike(whole, self._wanted)

    @functools.cached_property
    def _exact(self) -> tuple[list[Tensor], tuple[Wanted, ...]]:
        inputs = self._row.inputs("cpu", 5, rows=_CHECKED_ROWS)
        reference = self._row.family.reference
        return inputs, targets(reference(*inputs), Oracle(reference, inputs), inputs, torch.Generator().manual_seed(7))


class _Unscreened:
    """Lets every candidate through: what is interpreted is not compiled for a GPU."""

    target = Target()

    def builds(self, sources: Sequence[str]) -> list[Build]:
        return [Build((), None, launches=source, seconds=0.0) for source in sources]


def proposers(loaded: LoadedTask) -> list[Proposer]:
    """Return everybody the product would ask about a task on its device."""
    offered = everybody(loaded)
    for proposer in offered:
        if interpreted() and isinstance(proposer, Template):
            proposer.screen = _Unscreened()  # type: ignore[assignment]
    return offered


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"
