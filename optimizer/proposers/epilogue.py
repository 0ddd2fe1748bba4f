"""Offer an anchor's own call, as the reference makes it, followed by one loop nest for what maps its result.

The reference of a task is straight-line code: what stands up to the last statement with FLOPs of its own is kept word
for word, and what follows becomes a loop program in the language of the device.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ...extractor.load_task import LoadedTask
from ...extractor.task import Task
from ..attempt import Attempt
from ..candidate import Candidate
from ..codegen.chain import Chain, lower_chain
from ..codegen.language import Language, language_of
from ..codegen.lower import Unsupported
from .own_attempts import OwnAttempts, own_attempts


@dataclass(frozen=True)
class Parts:
    """A reference in two. head: imports and names of its file; anchor: statements; passed: what the rest reads."""

    head: str
    arguments: str
    anchor: tuple[str, ...]
    passed: tuple[str, ...]
    rest: Callable[..., tuple[Tensor, ...]]
    inputs: tuple[Tensor, ...]

    def around(self, epilogue: str) -> str:
        """Return the candidate file whose `kernel` runs the anchor and hands its result to the emitted one."""
        body = "\n".join(f"    {line}" for line in self.anchor)
        return (
            f"{epilogue.rstrip()}\n\n\nepilogue = kernel\n{self.head}\n\n"
            f"def kernel({self.arguments}):\n{body}\n    return epilogue({', '.join(self.passed)})\n"
        )


class Epilogue:
    """Proposes for one loaded task. reason: why there is nothing; None if there is, or the task has no epilogue."""

    name = "epilogue"

    def __init__(self, loaded: LoadedTask) -> None:
        self.reason: str | None = None
        self._loaded = loaded
        self._found: tuple[Parts, Chain] | None = None
        self._looked = False

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next setting of the loop nest that nobody tried; None when all were or there is no epilogue."""
        language = language_of(task.device)
        own = own_attempts(self.name, history)
        if task.kind != "anchor" or language is None or own is None:
            return None
        found = self._parts()
        return self._next(language, *found, own) if found else None

    def _next(self, language: Language, parts: Parts, chain: Chain, own: OwnAttempts) -> Candidate | None:
        for knobs, source in language.sources(chain, own.best.knobs if own.best else None):
            candidate = Candidate(parts.around(source), self.name, own.parent, dict(knobs.as_dict()))
            if candidate.hash not in own.tried:
                return candidate
        return None

    def _parts(self) -> tuple[Parts, Chain] | None:
        if not self._looked:
            self._looked = True
            parts = split(self._loaded)
            try:
                self._found = (parts, lower_chain(parts.rest, list(parts.inputs))) if parts else None
            except Unsupported as why:
                self.reason = f"what follows the anchor: {why}"
        return self._found


def split(loaded: LoadedTask) -> Parts | None:
    """Return a task's reference in two; None where it is not one anchor's call and straight-line code after it."""
    tree = ast.parse(loaded.source)
    function = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "reference"), None)
    if function is None or not function.body:
        return None
    *statements, last = [n for n in function.body if not _is_text(n)]
    simple = all(isinstance(n, ast.Assign) for n in statements) and isinstance(last, ast.Return)
    if not simple or function.args.vararg or function.args.kwonlyargs:
        return None
    head = [n for n in tree.body if n is not function and not _is_text(n)]
    names = [a.arg for a in function.args.args]
    values, end = _run_to_anchor(head, statements, dict(zip(names, loaded.inputs(0), strict=False)))
    if not 0 < end < len(statements):
        return None
    rest = [*statements[end:], last]
    read = [n.id for s in rest for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    passed = tuple(n for n in dict.fromkeys(read) if isinstance(values.get(n), Tensor))
    function.name, function.args = "rest", _arguments(passed)
    function.body = rest
    scope = dict(values)
    exec(compile(ast.fix_missing_locations(ast.Module([function], [])), "<rest of a reference>", "exec"), scope)
    return Parts(
        "\n".join(ast.unparse(n) for n in head),
        ", ".join(names),
        tuple(ast.unparse(s) for s in statements[:end]),
        passed,
        scope["rest"],
        tuple(values[n] for n in passed),
    )


def _run_to_anchor(
    head: Sequence[ast.stmt], statements: Sequence[ast.stmt], inputs: dict[str, Any]
) -> tuple[dict[str, Any], int]:
    """Run a reference statement by statement; return its names after the last one with FLOPs, and that one's end."""
    values: dict[str, Any] = {}
    exec(compile(ast.Module(list(head), []), "<head of a reference>", "exec"), values)
    values |= inputs
    kept, end = dict(values), 0
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        before = 0
        for number, statement in enumerate(statements, 1):
            exec(compile(ast.Module([statement], []), "<a reference>", "exec"), values)
            if counter.get_total_flops() > before:
                before, end, kept = counter.get_total_flops(), number, dict(values)
    return kept, end


def _arguments(names: Sequence[str]) -> ast.arguments:
    return ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
