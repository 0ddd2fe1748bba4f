"""The languages a loop program can be written in, each for the devices it runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from . import cpp, triton
from .chain import Chain, joined
from .program import LoopProgram


class Knobs(Protocol):
    """One setting of what may be turned without changing what is computed."""

    def as_dict(self) -> dict[str, str | int | bool]: ...


@dataclass(frozen=True)
class Language:
    """How to write a region: `settings` from the best guess on, `around` from what is known to be best."""

    name: str
    emit: Callable[[LoopProgram, Any], str]
    settings: Callable[[LoopProgram], list[Any]]
    around: Callable[[LoopProgram, Any], list[Any]]
    knobs: Callable[[Mapping[str, str | int | bool]], Any]

    def sources(self, chain: Chain, best: Mapping[str, Any] | None = None) -> Iterator[tuple[Knobs, str]]:
        """Yield knobs and candidate files, around the setting `best` if one is known.

        Several programs share their knobs, and those of the first are turned: it has the bytes to move.
        """
        first = chain.programs[0]
        settings = self.settings(first) if best is None else self.around(first, self.knobs(best))
        for knobs in settings:
            made = [self.emit(program, knobs) for program in chain.programs]
            yield knobs, made[0] if len(made) == 1 else joined(chain, made)


CPP = Language("C++", cpp.emit, cpp.knob_space, cpp.neighbours, cpp.CppKnobs.from_dict)
TRITON = Language("Triton", triton.emit, triton.knob_space, triton.around, triton.TritonKnobs.from_dict)


def language_of(device: str) -> Language | None:
    """Return the language for a device such as "cpu" or "cuda:1", None where there is none."""
    return {"cpu": CPP, "cuda": TRITON}.get(device.partition(":")[0])
