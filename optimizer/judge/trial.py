"""One candidate before the judge: its worker, and calls whose every answer is checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import arena
from .bank import Bank, Sample
from .hall import Hall, KernelRaisedError, Worker, WorkerError
from .library_calls import shown
from .target import misfit

POISON = 1
"""malloc then fills with 0xFE: a huge negative number in every floating dtype (nan in fp16)."""


class Rejected(Exception):
    """The candidate is not accepted; the message is the verdict's reason."""


@dataclass(frozen=True)
class Patience:
    """Seconds a candidate may take to load (a build included) and to answer one call."""

    load_s: float = 90.0
    call_s: float = 20.0


@dataclass
class Trial:
    """A candidate with what is known of it so far. strides: of its outputs, by recorded case."""

    source: str
    bank: Bank
    hall: Hall
    patience: Patience
    contiguous: tuple[str, ...] = ()
    has_prepare: bool = False
    label: str = ""
    strides: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    _worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            self._worker = self.hall.worker()
        return self._worker

    def load(self) -> None:
        """Have the worker import the candidate; raise Rejected where it does not load."""
        try:
            answer = self.worker.ask("load", seconds=self.patience.load_s, source=self.source)
        except KernelRaisedError as error:
            raise Rejected(f"does not load: {error}") from error
        except WorkerError as error:
            raise Rejected(f"while loading: {error}") from error
        self.label = str(answer.get("label", ""))[:200]

    def renew(self) -> None:
        """Load the candidate into a clean process."""
        self.close()
        self.load()

    def allows(self, sample: Sample) -> bool:
        """Whether the candidate's declared constraints hold for a sample."""
        named = zip(self.bank.task.inputs, sample.inputs, strict=True)
        return all(t.is_contiguous() for name, t in named if name in self.contiguous)

    def check(self, sample: Sample, *, keep: bool = False) -> list[Tensor]:
        """Call the candidate on a sample; return its outputs, raise Rejected where they are not what they must be."""
        outputs = self.call(sample, keep=keep)
        problem = misfit(outputs, sample.targets)
        if problem:
            raise Rejected(f"{sample.name}: {problem}")
        return outputs

    def call(self, sample: Sample, *, keep: bool = False, poison: int = POISON) -> list[Tensor]:
        """Return the outputs on a sample, right in number, type, dtype, shape and layout; inputs must be unchanged."""
        try:
            inbox, outbox = self.worker.arenas(self.bank.in_bytes, self.bank.out_bytes)
            self._hand_over(inbox, sample)
            sizes = [t.reference.numel() * t.reference.element_size() for t in sample.targets]
            answer = self.worker.ask("call", seconds=self.patience.call_s, poison=poison, keep=keep, out_sizes=sizes)
        except KernelRaisedError as error:
            raise Rejected(f"{sample.name}: raised {error}") from error
        except WorkerError as error:
            raise Rejected(f"{sample.name}: {error}") from error
        touched = arena.changed(inbox, sample.layout, sample.inputs)
        if touched:
            names = ", ".join(self.bank.task.inputs[i] for i in touched)
            raise Rejected(f"{sample.name}: changed its input {names} in place")
        return self._outputs(answer, sample, outbox)

    def library_calls(self) -> str:
        """Return the ops of torch it was seen to call on the last sample; what it does while it is watched is moot."""
        try:
            return shown(self.worker.ask("seen", seconds=self.patience.call_s).get("names"))
        except KernelRaisedError as error:
            return f"cannot be seen: {error}"
        except WorkerError as error:
            raise Rejected(f"called once more: {error}") from error

    def again(self, which: int, sample: Sample) -> list[Tensor]:
        """Return the outputs of an earlier kept call as they are now."""
        _, outbox = self.worker.arenas(self.bank.in_bytes, self.bank.out_bytes)
        try:
            answer = self.worker.ask("again", seconds=self.patience.call_s, which=which)
        except WorkerError as error:
            raise Rejected(f"{sample.name}: {error}") from error
        return self._outputs(answer, sample, outbox)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _hand_over(self, inbox: arena.Arena, sample: Sample) -> None:
        """Put a sample where the worker sees it. Weights are packed while the activations are still others."""
        self.worker.ask("layout", seconds=self.patience.call_s, layout=sample.layout)
        if self.has_prepare:
            roles = [s.role for s in sample.variant.specs]
            arena.write(
                inbox,
                sample.layout,
                [t if r == "weight" else _rolled(t) for t, r in zip(sample.inputs, roles, strict=True)],
            )
            self.worker.ask("prepare", seconds=self.patience.load_s)
        arena.write(inbox, sample.layout, sample.inputs)

    def _outputs(self, answer: dict[str, Any], sample: Sample, outbox: arena.Arena) -> list[Tensor]:
        rows = answer.get("outputs")
        wanted = sample.targets
        if answer.get("returned") != "tensors" or not isinstance(rows, list) or len(rows) != len(wanted):
            many = f"{len(rows)} values" if rows and isinstance(rows, list) else f"a {str(answer.get('returned'))[:60]}"
            raise Rejected(f"{sample.name}: returned {many}, expected {len(wanted)} tensor(s)")
        got: list[Tensor] = []
        for number, (row, target, view) in enumerate(zip(rows, wanted, sample.is_view, strict=True)):
            problem = _unlike(row, target.reference, outbox.nbytes, view=view, names=self.bank.task.inputs)
            if problem:
                raise Rejected(f"{sample.name}: output {number}: {problem}")
            base = outbox.bytes_at(row["at"], row["nbytes"]).clone()
            got.append(arena.as_laid_out(base, row["dtype"], row["shape"], row["stride"], 0))
        self.strides[sample.variant.name] = [t.stride() for t in got]
        return got


def _unlike(row: Any, like: Tensor, room: int, *, view: bool, names: tuple[str, ...]) -> str | None:
    """Return how a described output differs in kind from the reference's, None where it does not. Trusts nothing."""
    if not isinstance(row, dict) or row.get("type") != "Tensor":
        kind = row.get("type") if isinstance(row, dict) else row
        return f"a {str(kind)[:60]}, expected exactly a torch.Tensor"
    dtype = str(like.dtype).removeprefix("torch.")
    for what, expected in (("dtype", dtype), ("shape", list(like.shape)), ("device", like.device.type)):
        if row.get(what) != expected:
            return f"{what} {str(row.get(what))[:80]}, expected {expected}"
    stride, at, nbytes = row.get("stride") or [], row.get("at"), row.get("nbytes")
    whole = (
        isinstance(stride, list)
        and len(stride) == like.dim()
        and all(type(s) is int and 0 <= s < 1 << 48 for s in stride)
    )
    if not whole or type(at) is not int or type(nbytes) is not int:
        return "described in a way no tensor can be"
    if nbytes != arena.span(like.shape, stride) * like.element_size() or at < 0 or at % 128 or at + nbytes > room:
        return f"spread over {nbytes} bytes, more than an output of {like.numel()} elements may take"
    kept = [
        (s, have, dense)
        for s, have, dense in zip(like.shape, stride, arena.dense_strides(like.shape), strict=True)
        if s > 1
    ]
    exact = [(s, want) for s, want in zip(like.shape, like.stride(), strict=True) if s > 1]
    same = [h for _, h, _ in kept] == [w for _, w in exact]
    if like.numel() and not same and any(h != d for _, h, d in kept):
        return f"strides {stride}, expected {list(like.stride())} as the reference has them, or contiguous"
    source = row.get("is_input")
    if source is not None and not view:
        name = names[source] if type(source) is int and 0 <= source < len(names) else "?"
        return f"shares the memory of input {name}; the reference returns a new tensor"
    return None


def _rolled(tensor: Tensor) -> Tensor:
    """Return a tensor of the same layout with its storage's values moved on by one: valid, but not the call's."""
    size = tensor.element_size()
    raw = arena.storage_bytes(tensor)
    moved = torch.roll(raw, size) if raw.numel() % size == 0 else raw.clone()
    return arena.as_laid_out(
        moved, str(tensor.dtype).removeprefix("torch."), tensor.shape, tensor.stride(), int(tensor.storage_offset())
    )
