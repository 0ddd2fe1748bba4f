"""Shut the calling process in, in tiers: the best one this machine allows is used and named in the verdict.

Namespaces hide the network, other processes, homes, temporary files and the run; an id nobody owns and no capabilities
take away what is left; Landlock and seccomp do much of that where namespaces are refused; limits bound memory, files
and processes. Linux only.
"""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import signal
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .landlock import fence
from .syscalls import forbid

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_ALL = _NEWNET | _NEWNS | _NEWPID | _NEWIPC | _NEWUTS
_BIND, _REC, _PRIVATE, _NOSUID, _NODEV = 4096, 16384, 1 << 18, 2, 4
_PDEATHSIG, _DUMPABLE, _CAPBSET_DROP, _CHILD_SUBREAPER, _NO_NEW_PRIVS = 1, 4, 24, 36, 38
_AT_FDCWD, _AT_RECURSIVE, _SYS_MOUNT_SETATTR, _ATTR_RDONLY = -100, 0x8000, 442, 1
SCRATCH_BYTES = 512 << 20
_SCRATCH_FILES = 1 << 16
_ENDED_S = 3.0


@dataclass(frozen=True)
class Tier:
    """One way to shut a process in.

    flags: namespaces. own_id: run as a user id that owns nothing. filtered: forbid system calls (seccomp). fenced: let
    it see only what a kernel needs (Landlock), where no mount namespace hides the rest.
    """

    name: str
    flags: int
    own_id: bool
    filtered: bool = True
    fenced: bool = False

    @property
    def no_network(self) -> bool:
        """Whether a process in this tier reaches no network."""
        return self.filtered or bool(self.flags & _NEWNET)

    @property
    def no_signals(self) -> bool:
        """Whether a process in this tier can signal none but its own."""
        return self.own_id or self.filtered or self.ends_whole

    @property
    def ends_whole(self) -> bool:
        """Whether all that a process started ends with it, by the kernel."""
        return bool(self.flags & _NEWPID)

    @property
    def hides(self) -> bool:
        """Whether a process in this tier sees neither tasks nor runs nor homes."""
        return self.fenced or bool(self.flags & _NEWNS)

    @property
    def description(self) -> str:
        """The tier as a verdict names it."""
        parts = [
            "own process",
            self.name if self.flags else "",
            "an id that owns nothing" if self.own_id else "the caller's id",
            "Landlock" if self.fenced else "",
            "seccomp" if self.filtered else "",
            "rlimits",
        ]
        return ", ".join(p for p in parts if p)


_SPACES = "network, mount, pid and ipc namespaces"

TIERS = (
    Tier(_SPACES, _ALL, own_id=True),
    Tier("user, " + _SPACES, _NEWUSER | _ALL, own_id=False),
    Tier(_SPACES, _ALL, own_id=True, filtered=False),
    Tier("user, " + _SPACES, _NEWUSER | _ALL, own_id=False, filtered=False),
    Tier("network namespace", _NEWNET, own_id=True, fenced=True),
    Tier("process", 0, own_id=True, fenced=True),
    Tier("process", 0, own_id=False, fenced=True),
    Tier("network namespace", _NEWNET, own_id=True),
    Tier("process", 0, own_id=True),
    Tier("process", 0, own_id=False),
    Tier("process", 0, own_id=True, filtered=False),
    Tier("process", 0, own_id=False, filtered=False),
)  # fmt: skip
"""Best first. Bubblewrap would give the first two's namespaces too, but only to a process that starts anew."""


@dataclass(frozen=True)
class Confines:
    """What a worker is confined to: its tier, the id it runs as, what it must not see and how much it may use."""

    tier: Tier
    user_id: int
    hidden: tuple[str, ...]
    needed: tuple[str, ...]
    memory_bytes: int
    processes: int = 256
    file_bytes: int = SCRATCH_BYTES


def needed_paths() -> tuple[str, ...]:
    """Return the folders Python and this package are read from, which must stay visible."""
    roots = {Path(sys.prefix), Path(sys.base_prefix), Path(__file__).resolve().parents[2], Path(sys.executable).parent}
    roots |= {Path(p) for p in sys.path if p and Path(p).is_dir()}
    roots |= {r.resolve() for r in roots}
    return tuple(sorted(str(r) for r in roots if str(r) not in ("/", "/usr")))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent goes."""
    _call(_LIBC.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def separate(confines: Confines) -> None:
    """Enter the tier's namespaces; only children are in the pid one. Raises OSError where refused."""
    if confines.tier.flags:
        outer = (os.getuid(), os.getgid())
        _call(_LIBC.unshare(confines.tier.flags), "unshare")
        if confines.tier.flags & _NEWUSER:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{outer[0]} {outer[0]} 1")
            Path("/proc/self/gid_map").write_text(f"{outer[1]} {outer[1]} 1")


def hide(confines: Confines) -> str:
    """Cover what the worker must not see, as the first process of the namespaces; return its scratch folder."""
    if not confines.tier.flags & _NEWNS:
        return ""
    _mount("none", "/", None, _REC | _PRIVATE)
    attributes = struct.pack("QQQQ", _ATTR_RDONLY, 0, 0, 0)
    _call(
        _LIBC.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, attributes, len(attributes)), "mount_setattr"
    )
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV)
    for folder in _private_places(confines):
        if os.path.isdir(folder):  # noqa: PTH112 (one inside another is gone once that is covered)
            _cover(folder, confines)
    scratch = Path("/tmp/scratch")  # a fresh tmpfs of this namespace
    scratch.mkdir(mode=0o700)
    if confines.tier.own_id:
        os.chown(scratch, confines.user_id, confines.user_id)
    return str(scratch)


def _private_places(confines: Confines) -> list[str]:
    homes = {os.path.realpath(p) for p in ("/root", "/home", os.path.expanduser("~"))}  # noqa: PTH111 (strings)
    folders = {"/tmp", "/var/tmp", "/dev/shm", *homes, *confines.hidden}
    # Path.is_dir raises where this process may not look, and what it may not look at is hidden already.
    return sorted(f for f in folders if os.path.isdir(f) and f != "/")  # noqa: PTH112


def give_up_rights(confines: Confines, scratch: str) -> None:
    """Drop to the worker's id, without capabilities or a way to regain any, under its limits, fence and filter."""
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, confines.file_bytes),
        (resource.RLIMIT_AS, confines.memory_bytes),
        (resource.RLIMIT_NOFILE, 256),
    ):
        _limit(kind, most)
    for capability in range(64 if os.getuid() == 0 or confines.tier.flags & _NEWUSER else 0):
        _LIBC.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    if confines.tier.own_id:
        os.setgroups([])
        os.setresgid(confines.user_id, confines.user_id, confines.user_id)
        os.setresuid(confines.user_id, confines.user_id, confines.user_id)
        _LIBC.prctl(_DUMPABLE, 1, 0, 0, 0)
    elif confines.tier.flags & _NEWUSER:
        header, empty = struct.pack("Ii", 0x20080522, 0), bytes(24)
        _call(_LIBC.capset(header, empty), "capset")
    # An id of one's own, and a user namespace, start a count of their own; else what the caller runs is added.
    most = confines.processes + (
        0 if confines.tier.own_id or confines.tier.flags & _NEWUSER else _threads_of(os.getuid())
    )
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    _call(_LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    if confines.tier.fenced:
        fence(scratch, _private_places(confines), confines.needed)
    if confines.tier.filtered:
        forbid(others=not confines.tier.own_id and not confines.tier.ends_whole)


def adopt_orphans() -> None:
    """Have what a child's children leave behind become children of this process, so that none gets away."""
    _call(_LIBC.prctl(_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def alive_below(ancestor: int) -> list[int]:
    """Return the processes whose ancestor this one is, zombies left out."""
    parents: dict[int, int] = {}
    dead = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[:2]
                parents[int(entry.name)] = int(parent)
                if state in "ZX":
                    dead.add(int(entry.name))
    found: set[int] = set()
    fresh = {ancestor}
    while fresh := {pid for pid, parent in parents.items() if parent in fresh} - found:
        found |= fresh
    return sorted(found - dead)


def started_by(ancestor: int) -> list[int]:
    """Return the processes below this one that are alive, by the kernel's lists of children: quicker than a scan."""
    if not _lists_children():
        return alive_below(ancestor)
    found: list[int] = []
    fresh = [ancestor]
    while fresh := [child for pid in fresh for child in _children(pid)]:
        found += fresh
    return sorted(pid for pid in set(found) if _is_alive(pid))


@functools.cache
def _lists_children() -> bool:
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.scandir(f"/proc/{pid}/task"):
            found += map(int, Path(thread.path, "children").read_text().split())
    return found


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def kill_below(ancestor: int) -> None:
    """Kill all that a process has started, whatever session it moved to; gives up after a few seconds."""
    if ancestor <= 1:
        raise ValueError(f"process {ancestor} is no worker's: everything is below it")
    deadline = time.monotonic() + _ENDED_S
    while (rest := alive_below(ancestor)) and time.monotonic() < deadline:
        for pid in rest:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def _limit(kind: int, most: int) -> None:
    """Bound a resource, by what bounds it already where that is less."""
    hard = resource.getrlimit(kind)[1]
    least = most if hard == resource.RLIM_INFINITY else hard if most == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (least, least))


def _threads_of(user_id: int) -> int:
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            count += len(list((process / "task").iterdir())) if process.stat().st_uid == user_id else 0
    return count


def _cover(folder: str, confines: Confines) -> None:
    """Lay an empty tmpfs over a folder and bind back what must stay visible inside."""
    kept = [n for n in confines.needed if n != folder and n.startswith(folder + "/")]
    kept = [n for n in kept if Path(n).is_dir() and not any(n.startswith(k + "/") for k in kept)]
    if folder in confines.needed:
        return
    handles = [(name, os.open(name, os.O_PATH | os.O_DIRECTORY)) for name in kept]
    _mount("tmpfs", folder, "tmpfs", _NOSUID | _NODEV, f"mode=0755,size={SCRATCH_BYTES},nr_inodes={_SCRATCH_FILES}")
    for name, handle in handles:
        Path(name).mkdir(parents=True, exist_ok=True)
        _mount(f"/proc/self/fd/{handle}", name, None, _BIND | _REC)
        os.close(handle)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    done = _LIBC.mount(
        source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), options.encode()
    )
    _call(done, f"mount on {target}")


def _call(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
