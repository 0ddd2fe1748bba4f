"""Try a tier with a known candidate before it is trusted with unknown ones: it must work, and find no way out."""

from __future__ import annotations

import os

import torch

from . import arena
from .handle import Worker, WorkerError
from .isolation import Tier

_SECONDS = 20.0

# What a candidate of this machine would see. No raised error leaves it: each way out is one figure.
KNOWN = """
import os
import sched  # any module not imported before: its files must be there
import socket
import subprocess

import torch

REFUSED = (PermissionError, ProcessLookupError)


def reaches_a_network():
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.connect(("127.0.0.1", 1))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def signals_its_judge():
    try:
        os.kill({judge}, 0)
    except REFUSED:
        return False
    return {judge} != os.getpid()


def writes_scratch():
    with open("written", "w") as out:
        return out.write("x") == 1


def starts_programs():
    return subprocess.run(["/bin/sh", "-c", "exit 3"]).returncode == 3


def kernel(x):
    out = x * 3
    found = [reaches_a_network(), signals_its_judge(), writes_scratch(), starts_programs()]
    return out, torch.tensor(found, device=x.device), torch.tensor(out.data_ptr(), device=x.device)
"""


def probe(worker: Worker, tier: Tier) -> None:
    """Raise WorkerError with the reason where a known candidate does not work in this worker, or gets out of it."""
    worker.ask("load", seconds=_SECONDS, source=KNOWN.format(judge=os.getpid()))
    given = torch.arange(8.0, device=worker.device)
    layout, nbytes = arena.plan([given])
    inbox, outbox = worker.arenas(nbytes, 4096)
    arena.write(inbox, layout, [given])
    worker.ask("layout", seconds=_SECONDS, layout=layout)
    rows = worker.ask("call", seconds=_SECONDS, poison=0, keep=True)["outputs"]
    tripled, found, address = (outbox.bytes_at(row["at"], row["nbytes"]).clone() for row in rows)
    network, signals, scratch, programs = found.view(torch.bool).tolist()
    if not torch.equal(tripled.view(torch.float32), given * 3):
        raise WorkerError("a known candidate gave a wrong answer")
    if not scratch:
        raise WorkerError("a known candidate cannot write to its scratch folder")
    if not programs:  # compilers are such
        raise WorkerError("a known candidate cannot start a program")
    if network and tier.no_network:
        raise WorkerError("a known candidate reached a network")
    if signals and tier.no_signals:
        raise WorkerError("a known candidate could signal its judge")
    if worker.device != "cpu":  # its memory is shared by the driver, which nothing of a tier forbids
        return
    worker.stop()
    try:
        seen = worker.read(int(address.view(torch.int64)), tripled.numel())
    finally:
        worker.go_on()
    if not torch.equal(seen, tripled):
        raise WorkerError("the memory of a known candidate reads otherwise from outside")
