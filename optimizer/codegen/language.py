"""The languages a loop program can be written in, each for the devices it runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from . import cpp, triton
from .program import LoopProgram


class Knobs(Protocol):
    """One setting of what may be turned without changing what is computed."""

    def as_dict(self) -> dict[str, str | int | bool]: ...


@dataclass(frozen=True)
class Language:
    """How to write a program: `settings` from the best guess on, `around` one knob at a time from a known setting."""

    name: str
    emit: Callable[[LoopProgram, Any], str]
    settings: Callable[[LoopProgram], list[Any]]
    around: Callable[[LoopProgram, Any], list[Any]]
    knobs: Callable[[Mapping[str, str | int | bool]], Any]

    def sources(self, program: LoopProgram, best: Mapping[str, Any] | None = None) -> Iterator[tuple[Knobs, str]]:
        """Yield knobs and candidate files, around the setting `best` if one is known."""
        settings = self.settings(program) if best is None else self.around(program, self.knobs(best))
        for knobs in settings:
            yield knobs, self.emit(program, knobs)


CPP = Language("C++", cpp.emit, cpp.knob_space, cpp.neighbours, cpp.CppKnobs.from_dict)
TRITON = Language("Triton", triton.emit, triton.knob_space, triton.neighbours, triton.TritonKnobs.from_dict)


def language_of(device: str) -> Language | None:
    """Return the language for a device such as "cpu" or "cuda:1", None where there is none."""
    return {"cpu": CPP, "cuda": TRITON}.get(device.partition(":")[0])
