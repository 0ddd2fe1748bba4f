"""Offer a region whose outputs do not fit into one loop nest as one loop nest an output, one after another in one file.

The rotary embedding of queries and of fewer keys is such a region: a nest each, and what they share is small.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...extractor.load_task import LoadedTask
from ...extractor.task import Task
from ..attempt import Attempt, Knob
from ..candidate import Candidate
from ..codegen.chain import lower_whole
from ..codegen.language import Language, language_of
from ..codegen.lower import Unsupported, lower
from ..codegen.program import LoopProgram
from .kernel_file import next_candidate
from .template import alike, examples


@dataclass
class Apart:
    """Proposes a kernel an output where `lower` refuses the whole. reason: why there is none, None if there is."""

    loaded: LoadedTask
    name: str = "apart"
    reason: str | None = None
    _programs: list[LoopProgram] | None = field(default=None, init=False, repr=False)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next setting of the knobs, the same for all outputs; None where there is nothing to take apart."""
        language = language_of(task.device)
        if language is None or task.outputs < 2:
            return None
        if self._programs is None and self.reason is None:
            self._look(task)
        programs = self._programs
        if not programs:
            return None

        def emit(knobs: dict[str, Knob]) -> str:
            parts = [language.emit(program, language.knobs(knobs)) for program in programs]
            return joined(parts, task.inputs)

        return next_candidate(self.name, history, emit, _settings(language, programs[0]), {})

    def _look(self, task: Task) -> None:
        given = examples(self.loaded)
        try:
            lower_whole(self.loaded.reference, given, alike(task))
            self.reason = "the region is one loop nest: the template's work"
            return
        except Unsupported:
            pass  # just what this proposer is for
        try:
            self._programs = [lower(_only(self.loaded.reference, n), given) for n in range(task.outputs)]
        except Unsupported as why:
            self.reason = f"output by output: {why}"


def _only(reference: Callable[..., Any], number: int) -> Callable[..., tuple[torch.Tensor, ...]]:
    def one(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (reference(*inputs)[number],)

    return one


def _settings(language: Language, program: LoopProgram) -> Iterator[dict[str, Knob]]:
    for knobs in language.settings(program):
        yield dict(knobs.as_dict())


def joined(parts: Sequence[str], inputs: Sequence[str]) -> str:
    """Return one candidate file that calls the kernels of several, each returning a tuple, and returns all they return.

    parts: candidate files of the same inputs. What each names at its top level is renamed, so that none meets another.
    """
    written = [_renamed(part, f"_of{number}_") for number, part in enumerate(parts)]
    arguments = ", ".join(inputs)
    calls = ", ".join(f"*_of{number}_kernel({arguments})" for number in range(len(parts)))
    whole = f"def kernel({arguments}):\n    return ({calls},)\n"
    return "\n\n\n".join([f'"""Outputs apart: {len(parts)} kernels, one after another."""', *written, whole])


def _renamed(source: str, prefix: str) -> str:
    tree = ast.parse(source)
    own = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Assign):
            own |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    renamed = _Rename(own, prefix).visit(tree)
    return ast.unparse(ast.fix_missing_locations(renamed))


class _Rename(ast.NodeTransformer):
    """Prefixes names of the top level where they mean the top level: not what a function's own names hide."""

    def __init__(self, own: set[str], prefix: str) -> None:
        self._own, self._prefix = own, prefix

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._prefix + node.id, node.ctx) if node.id in self._own else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        arguments = node.args
        local = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        local |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        local |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a}
        name = self._prefix + node.name if node.name in self._own else node.name
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        inner = _Rename(self._own - local, self._prefix)
        node.body = [inner.visit(statement) for statement in node.body]
        node.args.defaults = [self.visit(d) for d in node.args.defaults]
        node.name = name
        return node
