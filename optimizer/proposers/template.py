"""Offer a region as one loop nest: lower it once, write it in the language of its device for one setting after another.

Starts with the settings of the language's best guesses; once one was accepted, it varies one knob at a time around the
best. What runs on a GPU is compiled ahead of time on the CPU's cores, and what spills registers or does not fit is not
offered.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch

from ...extractor.load_task import LoadedTask
from ...extractor.task import Task
from ..attempt import Attempt
from ..candidate import Candidate
from ..codegen.chain import Chain, lower_chain
from ..codegen.language import TRITON, Language, language_of
from ..codegen.lower import Unsupported
from ..codegen.triton_check import Screen
from ..codegen.triton_compile import Target
from .own_attempts import OwnAttempts, own_attempts


@dataclass
class Template:
    """Proposes loop nests for one loaded task.

    reason: why there is none, None if there is or nobody asked yet. refused: why a candidate was not offered, by hash.
    """

    loaded: LoadedTask
    name: str = "template"
    reason: str | None = None
    refused: dict[str, str] = field(default_factory=dict)
    screen: Screen | None = field(default=None, repr=False)
    _first: dict[str, str] = field(default_factory=dict, repr=False)
    _chain: Chain | None = field(default=None, repr=False)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next setting nobody tried; None when all were, or the region is no loop nest."""
        own = own_attempts(self.name, history)
        language = language_of(task.device)
        chain = self._lowered(task, language)
        if chain is None or language is None or own is None:
            return None
        offers = self._offers(language, chain, own)
        if language is TRITON:
            return self._screened(task, offers)
        return offers[0] if offers else None

    def _offers(self, language: Language, chain: Chain, own: OwnAttempts) -> list[Candidate]:
        sources = language.sources(chain, own.best.knobs if own.best else None)
        made = [Candidate(source, self.name, own.parent, dict(knobs.as_dict())) for knobs, source in sources]
        return [c for c in made if c.hash not in own.tried and c.hash not in self.refused]

    def _screened(self, task: Task, offers: list[Candidate]) -> Candidate | None:
        """Return the first candidate that fits the device, compiling as many ahead as there are cores."""
        self.screen = self.screen or Screen(task, Target.here() or Target())
        waiting = iter(offers)
        while batch := list(islice(waiting, os.cpu_count() or 1)):
            builds = self.screen.builds([c.source for c in batch])
            for candidate, build in zip(batch, builds, strict=True):
                trouble = build.trouble(self.screen.target)
                first = self._first.setdefault(build.launches, candidate.hash)
                if trouble is not None:
                    self.reason = f"settings were not offered, the last because of {trouble}"
                elif first == candidate.hash:
                    return candidate
                self.refused[candidate.hash] = trouble or f"does the same as {first[:12]}"
        return None

    def _lowered(self, task: Task, language: Language | None) -> Chain | None:
        if self._chain is None and self.reason is None:
            if language is None:
                self.reason = f"device {task.device}: no language for it"
                return None
            try:
                self._chain = lower_chain(self.loaded.reference, examples(self.loaded), alike(task))
            except Unsupported as why:
                self.reason = str(why)
        return self._chain


def alike(task: Task) -> list[tuple[int, int]]:
    """Return pairs of inputs that have one shape in every recorded case, and in every other that can come.

    Each input is paired with the first like it. Sizes vary by symbol, so both must have the same symbols.
    """

    def signature(number: int) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
        symbols = [[dim for where, dim in places if where == number] for places in task.size_symbols]
        return tuple(case.inputs[number].shape for case in task.cases), tuple(map(tuple, symbols))

    signatures = [signature(n) for n in range(len(task.inputs))]
    return [(first, n) for n, s in enumerate(signatures) if (first := signatures.index(s)) != n and any(s[0][0])]


def examples(loaded: LoadedTask) -> list[torch.Tensor]:
    """Return inputs to trace with: on the task's device, or without data where this machine has no such device."""
    task = loaded.task
    if task.device == "cpu" or torch.cuda.is_available():
        return loaded.inputs(0)
    specs = task.cases[0].inputs
    return [torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device="meta") for s in specs]
