"""Compiling C++: once, in private, with the compiler's own words when it fails."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from hotswap.optimizer import native
from hotswap.optimizer.native import NativeBuildError, cache_folder, compile_cpp, library_path

FLAGS = ("-O0", "-shared", "-fPIC")
SEVEN = 'extern "C" int seven() { return 7; }'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOTSWAP_CACHE", str(tmp_path))
    return tmp_path / "native"


def test_a_library_is_built_once_and_alone_in_a_private_folder(cache: Path) -> None:
    assert compile_cpp(SEVEN, flags=FLAGS).seven() == 7
    (built,) = cache.iterdir()
    stamp = built.stat().st_mtime_ns
    assert library_path(SEVEN, flags=FLAGS) == built
    assert built.stat().st_mtime_ns == stamp
    assert cache.stat().st_mode & 0o777 == 0o700
    assert built.stat().st_mode & 0o077 == 0


def test_other_flags_are_another_library(cache: Path) -> None:
    assert library_path(SEVEN, flags=FLAGS) != library_path(SEVEN, flags=(*FLAGS, "-DX"))
    assert len(list(cache.iterdir())) == 2


def test_a_refused_source_is_answered_with_the_compilers_lines(cache: Path) -> None:
    with pytest.raises(NativeBuildError, match=r"kernel\.cpp:1:.*error"):
        compile_cpp("int f( {", flags=FLAGS)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("what", ["folder", "library"])
def test_what_others_may_write_is_not_loaded(cache: Path, what: str) -> None:
    built = library_path(SEVEN, flags=FLAGS)
    (cache if what == "folder" else built).chmod(0o777)
    with pytest.raises(NativeBuildError, match="others may write"):
        compile_cpp(SEVEN, flags=FLAGS)


def test_what_belongs_to_somebody_else_is_not_loaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library_path(SEVEN, flags=FLAGS)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(NativeBuildError, match=f"belongs to user {me}"):
        compile_cpp(SEVEN, flags=FLAGS)


def test_a_missing_compiler_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    native._compiler.cache_clear()
    try:
        with pytest.raises(NativeBuildError, match="no-such-compiler: not found"):
            compile_cpp(SEVEN, flags=FLAGS)
    finally:
        native._compiler.cache_clear()


def test_the_cache_follows_the_environment(cache: Path) -> None:
    assert cache_folder() == cache


def test_the_file_stands_alone_for_exported_packages() -> None:
    import sys

    tree = ast.parse(Path(native.__file__).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            assert (node.module or "").split(".")[0] in {*sys.stdlib_module_names, "__future__"}
        if isinstance(node, ast.Import):
            assert all(a.name in sys.stdlib_module_names for a in node.names)
