"""`hotswap clean`: remove what is kept between runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from .console import print_json, results
from .options import examples, json_option


@click.command(epilog=examples("hotswap clean --dry-run", "hotswap clean"))
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
def command(dry_run: bool, as_json: bool) -> None:
    """Remove the cache: built kernels, measured limits, the store of winners. Runs are yours and stay.

    It is at HOTSWAP_CACHE, else in your cache folder; the next run makes it anew.
    """
    from ..models.cache import cache_dir

    bytes_of = {path: size(path) for path in sorted(cache_dir().iterdir())}
    if not dry_run:
        for path in bytes_of:
            remove(path)
    if as_json:
        entries = [{"path": str(path), "bytes": count} for path, count in bytes_of.items()]
        print_json({"removed": not dry_run, "entries": entries})
        return
    for path, count in bytes_of.items():
        results().print(f"{count / 1e6:9.1f} MB  {path}", markup=False, soft_wrap=True)
    verb = "would be removed" if dry_run else "removed"
    results().print(f"{sum(bytes_of.values()) / 1e6:9.1f} MB  {verb} from {cache_dir()}", markup=False, soft_wrap=True)


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; links count as themselves."""
    files = [path] if not path.is_dir() or path.is_symlink() else [p for p in path.rglob("*") if not p.is_dir()]
    return sum(p.lstat().st_size for p in files)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
