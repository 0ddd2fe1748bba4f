"""Compile C++ source to a loaded library, once for each source, flags, compiler and CPU.

Needs only the standard library: exported packages carry a copy of this file. Libraries live in a private directory; one
that somebody else could have written is not loaded.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

# No -ffast-math: NaN and Inf keep their meaning, sums keep their order except where a loop says otherwise.
DEFAULT_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
)
_COMPILE_SECONDS = 120.0


class NativeBuildError(Exception):
    """The compiler is missing, refused the source, or the cache cannot be trusted; a few lines."""


def compile_cpp(source: str, *, flags: Sequence[str] = DEFAULT_FLAGS) -> ctypes.CDLL:
    """Return the library built from `source`; raise NativeBuildError with the compiler's first lines."""
    return _load(library_path(source, flags=flags))


def library_path(source: str, *, flags: Sequence[str] = DEFAULT_FLAGS) -> Path:
    """Return the path of the library built from `source`, building it if it is not in the cache."""
    compiler = _compiler()
    identity = "\0".join((source, *flags, compiler, _compiler_version(compiler), _cpu()))
    path = cache_folder() / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.so"
    if not path.exists():
        _build(compiler, source, flags, path)
    return path


def cache_folder() -> Path:
    """Return the private directory of built libraries, made if absent: under $HOTSWAP_CACHE or the per-user default."""
    root = os.environ.get("HOTSWAP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(root) if root else (Path(base) if base else Path.home() / ".cache") / "hotswap"
    folder = folder / "native"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NativeBuildError(f"{folder}: cannot be made ({error.strerror}); set HOTSWAP_CACHE") from error
    _refuse_foreign(folder)
    return folder


def _load(path: Path) -> ctypes.CDLL:
    _refuse_foreign(path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeBuildError(f"{path}: built but cannot be loaded ({error}); delete it and try again") from error


def _refuse_foreign(path: Path) -> None:
    """Raise unless `path` is ours and nobody else may write to it: what lies there is executed."""
    status = path.stat()
    if status.st_uid != os.getuid():
        raise NativeBuildError(
            f"{path}: belongs to user {status.st_uid}, not {os.getuid()}; set HOTSWAP_CACHE elsewhere"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NativeBuildError(f"{path}: others may write to it; chmod go-w or set HOTSWAP_CACHE elsewhere")


def _build(compiler: str, source: str, flags: Sequence[str], path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as scratch:
        text, built = Path(scratch) / "kernel.cpp", Path(scratch) / "kernel.so"
        text.write_text(source, encoding="utf-8")
        command = [compiler, *flags, "-o", str(built), str(text)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NativeBuildError(f"{compiler}: did not finish ({error})") from error
        if done.returncode:
            lines = [line.replace(scratch + os.sep, "") for line in done.stderr.splitlines()]
            raise NativeBuildError("the compiler refused the source:\n" + "\n".join(lines[:8]))
        built.chmod(0o700)
        built.replace(path)


@functools.cache
def _compiler() -> str:
    wanted = os.environ.get("CXX", "g++")
    found = shutil.which(wanted)
    if found is None:
        raise NativeBuildError(f"{wanted}: not found; install g++ or set CXX")
    return found


@functools.cache
def _compiler_version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.partition("\n")[0]


@functools.cache
def _cpu() -> str:
    """Return what -march=native depends on: a library built on another CPU may not run here."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    kept = {line for line in lines if line.startswith(("flags", "Features", "model name", "CPU part"))}
    return platform.machine() + "".join(sorted(kept))
