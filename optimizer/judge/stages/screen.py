"""Stage 0: read the source without running it."""

from __future__ import annotations

import ast
from typing import Any

from ..trial import Rejected, Trial

_MOST_BYTES = 512 << 10


def screen(trial: Trial) -> dict[str, str]:
    """Reject what is no candidate file: one that does not parse, or whose `kernel` cannot take the task's inputs."""
    size = len(trial.source.encode(errors="replace"))
    if size > _MOST_BYTES:
        raise Rejected(f"the source has {size} bytes, at most {_MOST_BYTES} are read")
    try:
        tree = ast.parse(trial.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Rejected(f"the source does not parse: {error}") from error
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    if "kernel" not in functions:
        raise Rejected("the source defines no function `kernel` at its top level")
    count = len(trial.bank.task.inputs)
    _check_parameters(functions["kernel"].args, count, packed="prepare" in functions)
    declared = _literals(tree)
    trial.contiguous = _contiguous(declared, functions["kernel"].args, trial.bank.task.inputs)
    trial.has_prepare = "prepare" in functions
    if trial.has_prepare and declared.get("STATIC_WEIGHTS") is not True:
        raise Rejected("defines `prepare` without `STATIC_WEIGHTS = True`: packed weights must be declared")
    return {"bytes": str(size), "contiguous": ", ".join(trial.contiguous) or "nothing required"}


def _check_parameters(args: ast.arguments, count: int, *, packed: bool) -> None:
    positional = len(args.posonlyargs) + len(args.args)
    allowed = positional - (1 if packed and any(a.arg == "packed" for a in args.args) else 0)
    least = allowed - len(args.defaults)
    needed = [
        a.arg
        for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)
        if d is None and not (packed and a.arg == "packed")
    ]
    if least > count or (allowed < count and args.vararg is None):
        raise Rejected(f"`kernel` takes {allowed} inputs, expected {count}")
    if needed:
        raise Rejected(f"`kernel` needs the keyword {needed[0]!r}, which nobody gives")


def _literals(tree: ast.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("CONSTRAINTS", "STATIC_WEIGHTS"):
                try:
                    found[name] = ast.literal_eval(node.value)
                except ValueError as error:
                    raise Rejected(f"{name} must be a literal: it is read without running the file") from error
    return found


def _contiguous(declared: dict[str, Any], args: ast.arguments, inputs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the task's names of the inputs the candidate needs dense; it may use its own parameter names."""
    constraints = declared.get("CONSTRAINTS", {})
    if not isinstance(constraints, dict) or set(constraints) - {"contiguous"}:
        raise Rejected('CONSTRAINTS may only be {"contiguous": [names of inputs]}')
    own = [a.arg for a in (*args.posonlyargs, *args.args)]
    names = dict(zip(own, inputs, strict=False)) | {n: n for n in inputs}
    wanted = constraints.get("contiguous", [])
    if not isinstance(wanted, list | tuple) or any(n not in names for n in wanted):
        raise Rejected(f"CONSTRAINTS name an input that is not there; expected some of {', '.join(inputs)}")
    return tuple(names[n] for n in wanted)
