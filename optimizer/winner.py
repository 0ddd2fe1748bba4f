"""A winner: the kernel a task ended with, and where it may be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..models.record import Record
from .verdict import Race, Verdict

Choice = Literal["kernel", "inductor", "leave"]


@dataclass(frozen=True)
class InputDomain(Record):
    """What a kernel was verified for at one input: dtype, rank, and strides as order of dims or "any"."""

    dtype: str
    rank: int
    layout: str
    role: str


@dataclass(frozen=True)
class Domain(Record):
    """Where a kernel was accepted; checked at run time, outside it the original ops run and the call is counted.

    sizes: for each size symbol of the task, least and greatest size tried. fixed: (input, dim, size) that never varied.
    """

    inputs: tuple[InputDomain, ...]
    symbols: tuple[tuple[tuple[int, int], ...], ...]
    sizes: tuple[tuple[int, int], ...]
    fixed: tuple[tuple[int, int, int], ...]
    device: str
    threads: int


@dataclass(frozen=True)
class Winner(Record):
    """How a task ended.

    choice: "kernel" (source is ours), "inductor" (its code for the region was best) or "leave" (eager is best or
    nothing passed).
    source: the candidate file's text, None unless a kernel. static_weights: it packs weights that are not views.
    attempts: tries on record. reason: one line for a reader.
    """

    task: str
    fingerprint: str
    choice: Choice
    proposer: str | None
    source: str | None
    domain: Domain | None
    verdict: Verdict | None
    static_weights: bool
    attempts: int
    reason: str

    @property
    def races(self) -> tuple[Race, ...]:
        return self.verdict.races if self.verdict else ()
