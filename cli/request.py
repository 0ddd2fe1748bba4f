"""What a run was asked to do: made from flags, kept in its run.json, and made again from there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ..models.errors import Interrupted, SpecError
from .options import load_options, resolved

if TYPE_CHECKING:
    from ..integrator.run_directory import Run, RunDirectory
    from ..models.settings import Settings
    from ..models.workload import Workload


@dataclass(frozen=True)
class Request:
    """A model, how to load it, and the settings of the run."""

    model: str
    settings: Settings
    random_weights: bool
    trust_remote_code: bool
    inputs: str | None

    @classmethod
    def from_flags(cls, model: str, flags: Mapping[str, Any]) -> Self:
        """Return what the flags of `model_options` and `settings_options` ask for."""
        return cls(model, resolved(flags), flags["random_weights"], flags["trust_remote_code"], flags["inputs"])

    @classmethod
    def of_run(cls, run: Run, flags: Mapping[str, Any]) -> Self:
        """Return what a run was asked for; a flag given now wins.

        Raises SpecError for a run of a model that was handed over in Python: it has no spec to load it by.
        """
        from ..models.settings import resolve

        kept = dict(run.settings)
        if "random_weights" not in kept:
            raise SpecError(
                f"{run.folder}: its model was handed over in Python, and cannot be loaded from here; "
                "call hotswap.optimize(model, inputs, out=...) or hotswap.patch(model, run) there"
            )
        load = {name: kept.pop(name) for name in ("random_weights", "trust_remote_code", "inputs")}
        given = {name: value for name, value in flags.items() if value not in (None, ())}
        return cls(run.model, resolve({**kept, **given}), **load)

    def workload(self) -> Workload:
        """Load the model with its example calls, on the threads asked for."""
        import torch

        from ..models.spec import load

        if self.settings.threads is not None:
            torch.set_num_threads(self.settings.threads)
        options = load_options(
            self.settings,
            random_weights=self.random_weights,
            trust_remote_code=self.trust_remote_code,
            inputs=self.inputs,
        )
        return load(self.model, options)

    def new_directory(self) -> RunDirectory:
        """Make the run's directory, which remembers this request."""
        from ..integrator.run_directory import RunDirectory
        from ..models.settings import rows

        if self.settings.llm is not None:
            from ..optimizer.llm.start import check_llm

            check_llm(self.settings)
        values = {name: value for name, value, _ in rows(self.settings) if value != "-" and name != "out"}
        load = {name: getattr(self, name) for name in ("random_weights", "trust_remote_code", "inputs")}
        return RunDirectory.create(
            self.model,
            out=self.settings.out,
            settings={**values, **load},
            sources=self.settings.sources,
            seed=self.settings.seed,
        )


@contextmanager
def resumable(directory: RunDirectory) -> Iterator[RunDirectory]:
    """Give the directory up at the end; an interruption says how to go on from it."""
    with directory:
        try:
            yield directory
        except KeyboardInterrupt:
            where = directory.folder
            raise Interrupted(f"interrupted; {where} is valid, `hotswap resume {where}` continues it") from None


def command_line() -> str:
    """Return the command as it was typed, for the report."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
