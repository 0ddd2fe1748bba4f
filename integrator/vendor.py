"""Copy the part of this package that an exported model needs: the modules some roots import, and nothing else.

Relative imports stay as they are, because the copy has the same shape. Nothing is rewritten but the namespace of
`torch.library` ops, which one process may register only once.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# torch brings networkx, and triton where it is built for a GPU: nothing else reaches the files that import that.
# transformers and its hub are imported only where a spec asks for them.
ALLOWED = frozenset({"torch", "numpy", "networkx", "transformers", "huggingface_hub", "triton"})

_NAMESPACE = re.compile(r'torch\.ops\.hotswap\b|(?<=Library\()"hotswap"|(?<=")hotswap(?=::)')


def vendored(roots: Sequence[str], replaced: Mapping[str, str], namespace: str) -> dict[str, str]:
    """Return path to text of `roots` (paths from the package root) and all they import, JSON beside them included.

    replaced: texts to take instead of files of the package. namespace: of torch ops, instead of "hotswap".
    Raises ValueError where something outside `ALLOWED` and the standard library is imported.
    """
    texts: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        path = waiting.pop()
        if path not in texts:
            source = replaced.get(path) or (ROOT / path).read_text(encoding="utf-8")
            waiting += _imports(path, source)
            texts[path] = in_namespace(source, namespace)
    for folder in {Path(path).parent for path in texts}:
        for data in sorted((ROOT / folder).glob("*.json")):
            texts[(folder / data.name).as_posix()] = data.read_text(encoding="utf-8")
    return texts | {path: "" for path in _packages(texts) if path not in texts}


def in_namespace(source: str, namespace: str) -> str:
    """Return `source` with its torch ops registered and looked up under another namespace."""
    return _NAMESPACE.sub(lambda found: found.group().replace("hotswap", namespace), source)


def foreign_imports(source: str) -> set[str]:
    """Return the top-level names `source` imports absolutely, the standard library's left out."""
    return {name for name, _ in _absolute(ast.parse(source))} - set(sys.stdlib_module_names)


def _imports(path: str, source: str) -> Iterator[str]:
    """Yield the files of this package that a file imports when it runs; imports for type checkers are not followed."""
    tree = ast.parse(source, path)
    for name, line in _absolute(tree):
        if name not in ALLOWED and name not in sys.stdlib_module_names:
            raise ValueError(
                f"{path}:{line} imports {name}; an exported package may need only {', '.join(sorted(ALLOWED))}"
            )
    for node in _running(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = Path(path).parents[node.level - 1] / (node.module or "").replace(".", "/")
            for alias in node.names:
                yield _module(base / alias.name) or _module(base) or (base / "__init__.py").as_posix()


def _module(path: Path) -> str | None:
    file = path.with_suffix(".py")
    return file.as_posix() if (ROOT / file).is_file() else None


def _absolute(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in _running(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0], node.lineno


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, without the bodies of `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                yield other
                yield from _running(other)
        else:
            yield node
            yield from _running(node)


def _packages(paths: Mapping[str, str]) -> set[str]:
    folders = {folder for path in paths for folder in Path(path).parents}
    return {(folder / "__init__.py").as_posix() for folder in folders}
