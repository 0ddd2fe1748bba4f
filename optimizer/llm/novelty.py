"""Tell whether two candidate files are the same program written differently: comments, layout and local names aside."""

from __future__ import annotations

import ast
import hashlib
import re

_CPP_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def shape_of(source: str) -> str:
    """Return a hash that is equal for files which differ in comments, docstrings, layout or local names alone.

    Code in a string of several lines (C++) is compared without its comments and layout. A file that does not parse is
    its own text.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return hashlib.sha256(source.encode(errors="replace")).hexdigest()
    plain = _Plain().visit(tree)
    return hashlib.sha256(ast.dump(plain).encode(errors="replace")).hexdigest()


class _Plain(ast.NodeTransformer):
    """Drops docstrings, squeezes code in strings, and numbers the local names of each function."""

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            _drop_docstring(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            _number_locals(node)
        visited = super().visit(node)
        assert isinstance(visited, ast.AST)
        return visited

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and "\n" in node.value:
            return ast.Constant(" ".join(_CPP_COMMENT.sub(" ", node.value).split()))
        return node


def _drop_docstring(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body = node.body[1:] or [ast.Pass()]


def _number_locals(function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Rename what the function itself binds. Parameters keep their names: constraints and callers use them."""
    kept = {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}
    kept |= {n for g in ast.walk(function) if isinstance(g, ast.Global | ast.Nonlocal) for n in g.names}
    names: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in kept:
            names.setdefault(node.id, f"local{len(names)}")
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in names:
            node.id = names[node.id]
