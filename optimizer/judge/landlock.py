"""Fence a process in without any right: Landlock lets it see the system's own files and its scratch, and no more.

For tiers that have no mount namespace to hide files in. The kernel also refuses it to trace, or to read the memory of,
any process outside the fence, and from version 6 on to signal one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
# Rights on files that a version of Landlock handles, and the size of its request: later fields are for TCP and scopes.
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_RIGHTS = (1 << 16) - 1
_TCP, _SCOPES = 0b11, 0b11
_DEVICES = ("null", "zero", "full", "random", "urandom")


def fence(scratch: str, hidden: Sequence[str], needed: Sequence[str]) -> None:
    """Let this process write to `scratch` alone and read all but what is hidden; raise OSError where that cannot be.

    hidden: folders that it must not see; needed: folders inside them that it must. Needs no_new_privs.
    """
    version = _LIBC.syscall(_CREATE, None, 0, _VERSION)
    if version < 1:
        raise OSError(errno.ENOSYS, "Landlock: this kernel has none, or it is switched off")
    rights = _RIGHTS.get(version, _ALL_RIGHTS)
    size = 8 if version < 4 else 16 if version < 6 else 24
    request = struct.pack("QQQ", rights, _TCP, _SCOPES)[:size]
    rules = _call(_LIBC.syscall(_CREATE, request, size, 0), "Landlock")
    # The environment of another process of the same user may be read in spite of the fence: only one's own is shown.
    own = [f"/proc/{n}" for n in os.listdir("/proc") if not n.isdigit() or int(n) == os.getpid()]  # noqa: PTH208
    try:
        _allow(rules, scratch, rights)
        for path in _seen(Path("/"), [Path(h) for h in (*hidden, "/proc")], [Path(n) for n in (*needed, *own)]):
            _allow(rules, path, rights & _READ)
        for path in needed:
            _allow(rules, path, rights & _READ_DIR)  # modules are found by listing; hidden names in it stay names
        for name in (*_DEVICES, *(p.name for p in Path("/dev").glob("nvidia*"))):
            _allow(rules, f"/dev/{name}", rights & (_OF_FILES | _READ_DIR))
        _call(_LIBC.syscall(_RESTRICT, rules, 0), "Landlock")
    finally:
        os.close(rules)


def _seen(folder: Path, hidden: Sequence[Path], needed: Sequence[Path]) -> Iterator[str]:
    """Yield paths that together hold all below a folder but what is hidden; what is needed is seen in it."""
    if folder in hidden:
        inner = [n for n in needed if n.is_relative_to(folder)]
        for path in inner if folder not in inner else []:
            yield from _seen(path, [h for h in hidden if h.is_relative_to(path)], [])
        if folder not in inner:
            return
    below = [h for h in hidden if h != folder and h.is_relative_to(folder)]
    if not below:
        yield str(folder)
        return
    try:
        children = list(folder.iterdir())
    except OSError:  # what cannot be listed is not shown
        return
    for child in children:
        if not child.is_symlink():
            yield from _seen(child, below, needed)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH)
    except OSError:  # a device this machine lacks, a path gone since it was listed
        return
    try:
        if not os.path.isdir(path):  # noqa: PTH112 (does not raise)
            rights &= _OF_FILES
        if rights:
            _call(_LIBC.syscall(_ADD, rules, _PATH_BENEATH, struct.pack("=Qi", rights, handle), 0), f"Landlock: {path}")
    finally:
        os.close(handle)


def _call(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result
