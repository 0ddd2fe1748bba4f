"""What a task is made from: a reference, its inputs at each shape, and its constants; read from a file of two forms.

Our own form: `reference(*tensors, **consts)` and `inputs(seed, shape_index=0)`, a tuple of tensors of which the
`nn.Parameter`s are weights; optional `SHAPES`, names with weights, and `CONSTS`, a dict. KernelBench's form: `Model`,
`get_inputs()`, `get_init_inputs()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ..models.errors import SpecError
from ..models.seeded import seeded
from ..models.trial import explained
from ..models.user_code import run_file

Shapes = tuple[tuple[str, float], ...]

_OURS = ("reference", "inputs")
_THEIRS = ("Model", "get_inputs", "get_init_inputs")


@dataclass(frozen=True)
class Problem:
    """A function to be made faster.

    reference: called as `reference(*inputs, **consts)`; returns tensors. A module's parameters and buffers are weights.
    inputs: called as `inputs(seed, shape_index)`; returns the positional arguments. Tensors are the task's inputs,
    `nn.Parameter`s its weights; anything else is a constant. shapes: name and weight of each shape index.
    origin: where it came from, for messages.
    """

    name: str
    reference: Callable[..., Any]
    inputs: Callable[[int, int], Sequence[Any]]
    shapes: Shapes = (("s0", 1.0),)
    consts: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "Python"


def read_problem(path: Path, seed: int = 0) -> Problem:
    """Return what a file defines in either form.

    Raises SpecError for a file of neither form, ModelRaised, EnvironmentMissing or ResourceExhausted where it raises.
    """
    if not path.is_file():
        raise SpecError(f"{path}: no such file; expected a Python file with reference and inputs, or with Model")
    module = run_file(path)
    if all(hasattr(module, name) for name in _OURS):
        return _ours(path, module)
    if all(hasattr(module, name) for name in _THEIRS):
        return _theirs(path, module, seed)
    mine = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
    raise SpecError(
        f"{path}: expected {' and '.join(_OURS)}, or {', '.join(_THEIRS)} (KernelBench); "
        f"it defines {', '.join(mine) or 'no function or class'}"
    )


def _ours(path: Path, module: ModuleType) -> Problem:
    consts = getattr(module, "CONSTS", {})
    if not isinstance(consts, Mapping) or not all(isinstance(name, str) for name in consts):
        raise SpecError(f"{path}: CONSTS: expected a dict of keyword arguments of reference, got {consts!r}")
    shapes = _shapes(path, getattr(module, "SHAPES", None))
    return Problem(path.stem, module.reference, module.inputs, shapes, dict(consts), str(path))


def _shapes(path: Path, given: Any) -> Shapes:
    """Return SHAPES as (name, weight) pairs: a dict, a list of names, or a list of tuples that begin with the two."""
    if given is None:
        return (("s0", 1.0),)
    rows = list(given.items()) if isinstance(given, Mapping) else list(given) if isinstance(given, list | tuple) else []
    pairs = [(row, 1.0) if isinstance(row, str) else row for row in rows]
    if not pairs or not all(_is_pair(pair) for pair in pairs) or len({p[0] for p in pairs}) < len(pairs):
        raise SpecError(
            f"{path}: SHAPES: expected a dict or list of unlike names, each with a weight above 0, such as "
            f'{{"prefill": 1, "decode": 64}}; got {given!r}'
        )
    return tuple((pair[0], float(pair[1])) for pair in pairs)


def _is_pair(pair: Any) -> bool:
    if not isinstance(pair, list | tuple) or len(pair) < 2 or not isinstance(pair[0], str) or not pair[0]:
        return False
    number = isinstance(pair[1], int | float) and not isinstance(pair[1], bool)
    return number and math.isfinite(pair[1]) and pair[1] > 0


def _theirs(path: Path, module: ModuleType, seed: int) -> Problem:
    """Return KernelBench's form. The model is put in eval mode: dropout draws nothing, statistics stay as they are."""

    def made(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:  # the user's file may raise anything
            raise explained(error, f"{path}: {function.__name__}", near=path.resolve()) from error

    with seeded(seed, "cpu"):
        given = made(module.get_init_inputs)
        args, kwargs = _arguments(given)
        model = made(module.Model, *args, **kwargs)
    if not isinstance(model, nn.Module):
        raise SpecError(f"{path}: Model: expected a torch.nn.Module, got {type(model).__name__}")

    def inputs(seed: int, _: int) -> Sequence[Any]:
        with seeded(seed, "cpu"):
            found: Sequence[Any] = made(module.get_inputs)
        return found

    return Problem(path.stem, model.eval(), inputs, origin=str(path))


def _arguments(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return what `get_init_inputs` means: positional arguments, keywords, or a list of both, `[[...], {...}]`."""
    if isinstance(given, Mapping):
        return [], dict(given)
    if len(given) == 2 and isinstance(given[0], list) and isinstance(given[1], dict):
        return list(given[0]), given[1]
    return list(given), {}
