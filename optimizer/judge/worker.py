"""The process a candidate runs in: `python -m hotswap.optimizer.judge.worker` forks one from a clean parent for each.

It gets a source, inputs in shared memory and orders on a socket; it returns tensors. It holds no reference, oracle,
comparator, seed or clock, and nothing it says decides anything but that it failed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from . import isolation, wire
from .bench import Bench
from .device_bench import DeviceBench

_IDLE_S = 0.3


def main() -> None:
    """Fork a worker for every order on the socket that is file descriptor `argv[1]`, until it closes.

    argv[2]: the compute capability that Triton is made ready for (90 for 9.0), absent on a CPU.
    """
    orders = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    isolation.die_with_parent()
    capability = int(sys.argv[2]) if len(sys.argv) > 2 else None
    while True:
        # Rivals are forked first: they have most to do, and take nothing from Triton's being ready.
        if capability is not None and not select.select([orders], [], [], _IDLE_S)[0]:
            _make_ready(capability)
            capability = None
        try:
            order, fds = wire.receive(orders, most_fds=wire.FDS)
        except wire.GoneError:
            return
        pid = os.fork()
        if pid == 0:
            orders.close()
            _start(order, fds)
        for fd in fds:
            os.close(fd)
        wire.send(orders, {"pid": pid})


def _make_ready(capability: int) -> None:
    from .warm_triton import warm_triton

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # compilers are waited for
    warm_triton(capability)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _start(order: dict[str, Any], fds: list[int]) -> NoReturn:
    """Become the keeper of one worker: confine, fork it, and write how it ended to the status pipe."""
    control, status = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    isolation.die_with_parent()
    isolation.adopt_orphans()
    os.setsid()
    os.environ.update(order["environment"])
    tier = isolation.Tier(**order["tier"]) if order["tier"] is not None else None
    needed = isolation.needed_paths()
    confines = (
        isolation.Confines(tier, order["user_id"], tuple(order["hidden"]), needed, order["memory_bytes"])
        if tier
        else None
    )
    try:
        if confines:
            isolation.separate(confines)
        child = os.fork()
        if child == 0:
            os.close(status)
            _become(order, confines, control)
        os.close(control)
        _, ended = os.waitpid(child, 0)
        if tier and not tier.ends_whole:
            isolation.kill_below(os.getpid())
    except OSError as error:
        os.write(status, f"refused {error}".encode())
        os._exit(1)
    code = os.waitstatus_to_exitcode(ended)
    # The first process of a pid namespace passes its child's signal on as 128 + signal: it cannot die by one itself.
    os.write(status, f"signal {code - 128}".encode() if code > 128 else f"exit {code}".encode())
    os._exit(0)


def _become(order: dict[str, Any], confines: isolation.Confines | None, control: int) -> NoReturn:
    """Cover the file system, fork the worker itself and pass its end on; what is left in the namespace dies with us."""
    isolation.die_with_parent()
    sock = socket.socket(fileno=control)
    try:
        scratch = (isolation.hide(confines) if confines else "") or order["scratch"]
        child = os.fork()
        if child:
            sock.close()
            _, ended = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(ended)
            os._exit(128 - code if code < 0 else code)
        os.setsid()
        if confines:
            isolation.give_up_rights(confines, scratch)
        isolation.die_with_parent()
        _at_home(scratch, confined=confines is not None)
    except OSError as error:
        wire.send(sock, {"ok": False, "error": f"isolation refused: {error}"})
        os._exit(1)
    (Bench if order["device"] == "cpu" else DeviceBench)(sock).serve()
    os._exit(0)


def _at_home(scratch: str, *, confined: bool) -> None:
    os.chdir(scratch)
    if confined:
        home = {"HOME": scratch, "TMPDIR": scratch, "HOTSWAP_CACHE": f"{scratch}/cache"}
        # Triton may have been imported by the parent, and then keeps the home it saw there.
        os.environ.update(home | {"TRITON_HOME": scratch, "TRITON_CACHE_DIR": f"{scratch}/triton"})
        tempfile.tempdir = None  # looked for anew: the parent may have found one that this id may not write to
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if confined:
        with suppress(
            OSError
        ):  # not every kernel lets an id that owns nothing ask for it; the memory limit still holds
            Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    main()
