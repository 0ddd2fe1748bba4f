"""Turn the text of a candidate file into callables, once a text."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..models.errors import CandidateRejected


@dataclass(frozen=True)
class Kernel:
    """A loaded candidate file.

    prepare: packs weights, None where the file has none. contiguous: positions of inputs it needs dense.
    """

    hash: str
    call: Callable[..., Any]
    prepare: Callable[..., Any] | None
    contiguous: frozenset[int]


_loaded: dict[str, Kernel] = {}


def source_hash(source: str) -> str:
    """Return the first 16 hex digits of the text's SHA-256."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def load_kernel(source: str, name: str) -> Kernel:
    """Return the kernel that `source` defines; raise CandidateRejected where it does not load."""
    digest = source_hash(source)
    if digest not in _loaded:
        _loaded[digest] = _kernel(_execute(source, digest, name), digest, name)
    return _loaded[digest]


def _execute(source: str, digest: str, name: str) -> ModuleType:
    module = ModuleType(f"hotswap_kernel_{digest}")
    filename = f"<hotswap kernel {name} {digest}>"
    # Tracebacks and inspect.getsource (which triton.jit calls) read the text from here; dataclasses need the module.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, filename, "exec"), module.__dict__)
    except Exception as error:  # a candidate file may raise anything while it is imported or built
        del sys.modules[module.__name__]
        raise CandidateRejected(f"kernel {name}: its source does not load ({type(error).__name__}: {error})") from error
    return module


def _kernel(module: ModuleType, digest: str, name: str) -> Kernel:
    names = module.__dict__
    call, prepare = names.get("kernel"), names.get("prepare")
    if not callable(call):
        raise CandidateRejected(f"kernel {name}: its source defines no function kernel(*inputs)")
    if prepare is not None and not names.get("STATIC_WEIGHTS", False):
        raise CandidateRejected(f"kernel {name}: defines prepare() without STATIC_WEIGHTS = True")
    wanted = names.get("CONSTRAINTS", {}).get("contiguous", ())
    parameters = [p for p in inspect.signature(call).parameters if p != "packed"]
    unknown = [w for w in wanted if w not in parameters]
    if unknown:
        raise CandidateRejected(
            f"kernel {name}: CONSTRAINTS name {unknown[0]!r}, expected one of {', '.join(parameters)}"
        )
    return Kernel(digest, call, prepare, frozenset(parameters.index(w) for w in wanted))
