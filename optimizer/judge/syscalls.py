"""Forbid a process system calls that no kernel needs: a seccomp filter built by hand, no library wanted.

It denies with EPERM and never kills, so that a library that merely tries goes on. It holds for all that the process
starts, and nothing takes it off again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)
_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_AF_UNIX = 1
_NEW_NAMESPACES = 0x7E020000
_X32 = 0x40000000

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine to its audit number and the column of the tables below."""

DENIED: dict[str, tuple[int, int]] = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "connect": (42, 203), "delete_module": (176, 106),
    "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430),
    "fspick": (433, 433), "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429),
    "mq_open": (240, 180), "msgget": (68, 186), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41), "process_madvise": (440, 440), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "reboot": (169, 142),
    "request_key": (249, 218), "semget": (64, 190), "setns": (308, 268), "settimeofday": (164, 170),
    "shmget": (29, 194), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39),
    "unshare": (272, 97), "userfaultfd": (323, 282),
}  # fmt: skip
# What reaches other processes of one's own id: only where neither an id nor a pid namespace stands between.
ON_OTHERS: dict[str, tuple[int, int]] = {
    "ioprio_set": (251, 30), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "sched_setattr": (314, 274), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "setpriority": (141, 140), "tkill": (200, 130),
}  # fmt: skip
ON_ONESELF_ONLY: dict[str, tuple[int, int]] = {"kill": (62, 129), "sched_setaffinity": (203, 122), "tgkill": (234, 131)}
_SOCKET, _CLONE, _CLONE3, _PRLIMIT = (41, 198), (56, 220), (435, 435), (302, 261)


def forbid(*, others: bool) -> None:
    """Install the filter on this process for good; raise OSError where the kernel or the machine has none.

    others: also forbid signals to, and scheduling of, processes other than this one. Needs no_new_privs.
    """
    program = b"".join(_program(others=others))
    code = ctypes.create_string_buffer(program, len(program))
    filtered = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    if _LIBC.prctl(_SET_SECCOMP, _MODE_FILTER, filtered, 0, 0):
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def _program(*, others: bool) -> list[bytes]:
    """Return the filter's instructions; every rule is a few of them that fall through when it does not apply."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"seccomp: system calls of {machine} are not known here")
    audit, column = _ARCHITECTURES[machine]
    refuse = _step(_RETURN, _ERRNO | errno.EPERM)
    steps = [
        _step(_LOAD, _ARCH_AT), _step(_EQUAL, audit, 1, 0), _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER_AT), _step(_ANY_BIT, _X32, 0, 1), refuse,
    ]  # fmt: skip
    for numbers in (DENIED | (ON_OTHERS if others else {})).values():
        steps += [_step(_EQUAL, numbers[column], 0, 1), refuse]
    # glibc then falls back to clone, whose flags can be seen.
    steps += [_step(_EQUAL, _CLONE3[column], 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    steps += _unless_first(_SOCKET[column], [_AF_UNIX])
    steps += _unless_first(_PRLIMIT[column], [0, os.getpid()])
    steps += [
        _step(_EQUAL, _CLONE[column], 0, 4), _step(_LOAD, _FIRST_ARGUMENT_AT),
        _step(_ANY_BIT, _NEW_NAMESPACES, 0, 1), refuse, _step(_RETURN, _ALLOW),
    ]  # fmt: skip
    for numbers in ON_ONESELF_ONLY.values() if others else ():
        steps += _unless_first(numbers[column], [0, os.getpid()])
    return [*steps, _step(_RETURN, _ALLOW)]


def _unless_first(number: int, allowed: list[int]) -> list[bytes]:
    """Refuse a call unless the low half of its first argument is one of the allowed."""
    checks = [_step(_EQUAL, value, len(allowed) - 1 - i + 1, 0) for i, value in enumerate(allowed)]
    body = [_step(_LOAD, _FIRST_ARGUMENT_AT), *checks, _step(_RETURN, _ERRNO | errno.EPERM), _step(_RETURN, _ALLOW)]
    return [_step(_EQUAL, number, 0, len(body)), *body]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
