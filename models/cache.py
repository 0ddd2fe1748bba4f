"""Where things worth keeping between runs live: measured limits, built kernels, the store of winners."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import EnvironmentMissing
from .settings import variable


def cache_dir() -> Path:
    """Return the cache directory, made with mode 0700: $HOTSWAP_CACHE, else the user's own cache folder.

    Raises EnvironmentMissing where it cannot be made or written, or where somebody else owns or may write it, because
    code is run from it.
    """
    folder = _place()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
    except OSError as error:
        raise EnvironmentMissing(
            f"cache directory {folder}: {error.strerror}; set HOTSWAP_CACHE to a directory of yours"
        ) from error
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise EnvironmentMissing(
            f"cache directory {folder}: belongs to user id {status.st_uid}, not to {os.getuid()}, and code is run "
            "from it; set HOTSWAP_CACHE to a directory of yours"
        )
    if status.st_mode & 0o022:
        raise EnvironmentMissing(
            f"cache directory {folder}: others may write to it, and code is run from it; chmod go-w it or set "
            "HOTSWAP_CACHE to a directory of yours"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise EnvironmentMissing(f"cache directory {folder}: not writable; set HOTSWAP_CACHE to a directory of yours")
    return folder


def _place() -> Path:
    chosen = variable("HOTSWAP_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = variable("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "hotswap"
    except RuntimeError as error:  # no home directory
        raise EnvironmentMissing("cache directory: this user has no home directory; set HOTSWAP_CACHE") from error
