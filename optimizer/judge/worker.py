"""The process a candidate runs in: `python -m hotswap.optimizer.judge.worker` forks one from a clean parent for each.

It gets a source, inputs in shared memory and orders on a socket; it returns tensors. It holds no reference, oracle,
comparator, seed or clock, and nothing it says decides anything but that it failed.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor

from . import arena, isolation, wire

_M_PERTURB = -6


def main() -> None:
    """Fork a worker for every order on the socket that is file descriptor `argv[1]`, until it closes."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    isolation.die_with_parent()
    while True:
        try:
            order, fds = wire.receive(orders)
        except wire.GoneError:
            return
        pid = os.fork()
        if pid == 0:
            orders.close()
            _start(order, fds)
        for fd in fds:
            os.close(fd)
        wire.send(orders, {"pid": pid})


def _start(order: dict[str, Any], fds: list[int]) -> NoReturn:
    """Become the keeper of one worker: confine, fork it, and write how it ended to the status pipe."""
    control, status = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    isolation.die_with_parent()
    os.setsid()
    os.environ.update(order["environment"])
    tier = isolation.TIERS[order["tier"]] if order["tier"] is not None else None
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
            isolation.give_up_rights(confines)
        isolation.die_with_parent()
        _at_home(scratch, confined=confines is not None)
    except OSError as error:
        wire.send(sock, {"ok": False, "error": f"isolation refused: {error}"})
        os._exit(1)
    Bench(sock).serve()
    os._exit(0)


def _at_home(scratch: str, *, confined: bool) -> None:
    os.chdir(scratch)
    os.environ.update({"HOME": scratch, "TMPDIR": scratch, "HOTSWAP_CACHE": f"{scratch}/cache"} if confined else {})
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    if confined:
        with suppress(
            OSError
        ):  # not every kernel lets an id that owns nothing ask for it; the memory limit still holds
            Path("/proc/self/oom_score_adj").write_text("1000")


class Bench:
    """One loaded kernel, the inputs it is called on and the outputs it gave."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.kernel: Any = None
        self.prepare: Any = None
        self.extra: dict[str, Any] = {}
        self.inputs: list[Tensor] = []
        self.kept: list[Any] = []
        self.sets: list[list[Tensor]] = []
        self.outs: list[Any] = []
        torch.set_grad_enabled(False)
        gc.freeze()

    def serve(self) -> None:
        """Answer orders until the judge closes the socket."""
        wire.send(self.sock, {"ok": True, "threads": torch.get_num_threads()})
        while True:
            try:
                order, fds = wire.receive(self.sock)
            except wire.GoneError:
                return
            try:
                answer = getattr(self, f"do_{order['do']}")(order, fds)
            except BaseException as error:  # candidate code may raise anything, SystemExit included
                answer = {"ok": False, "error": _told(error)}
            try:
                wire.send(self.sock, {"ok": True, **(answer or {}), "id": order["id"]})
            except wire.GoneError:
                return

    def do_load(self, order: dict[str, Any], _: list[int]) -> dict[str, Any]:
        path = Path("candidate.py")
        path.write_text(order["source"], encoding="utf-8")
        module = _module("candidate", path)
        self.kernel, self.prepare = module.kernel, getattr(module, "prepare", None)
        return {"label": str(getattr(module, "LABEL", ""))[:200]}

    def do_rival(self, order: dict[str, Any], _: list[int]) -> None:
        from ...extractor.load_task import load_task  # trusted workers only: the candidate's never reads the task

        reference: Any = load_task(Path(order["folder"])).reference
        if order["compiled"]:
            import torch._dynamo.config as dynamo_config

            # One graph a shape, all of them kept: a fallback to eager would be a weak rival.
            dynamo_config.recompile_limit = dynamo_config.accumulated_recompile_limit = 256
            reference = torch.compile(reference, dynamic=False, fullgraph=True)
        self.kernel = reference

    def do_arena(self, order: dict[str, Any], fds: list[int]) -> None:
        self.inbox = arena.Arena(fds[0], order["in_bytes"])
        self.outbox = arena.Arena(fds[1], order["out_bytes"])

    def do_layout(self, order: dict[str, Any], _: list[int]) -> None:
        self.inputs = self.inbox.tensors(order["layout"])

    def do_prepare(self, _order: dict[str, Any], _: list[int]) -> None:
        self.extra = {"packed": self.prepare(*self.inputs)} if self.prepare else {}

    def do_call(self, order: dict[str, Any], _: list[int]) -> dict[str, Any]:
        _poison(order["poison"])
        try:
            outputs = self.kernel(*self.inputs, **self.extra)
        finally:
            _poison(0)
        answer = self._export(outputs)
        if order["keep"]:
            self.kept.append(outputs)
        return answer

    def do_again(self, order: dict[str, Any], _: list[int]) -> dict[str, Any]:
        return self._export(self.kept[order["which"]])

    def do_pool(self, order: dict[str, Any], fds: list[int]) -> None:
        """Lay out many input sets in memory that the judge fills while this process is stopped; weights exist once."""
        self.outs = []
        room, table = arena.Arena(fds[0], order["bytes"]), arena.Arena(fds[1], order["table_bytes"])
        self.table = table.bytes_at(0, table.nbytes).view(torch.int64).numpy()
        self.sets = []
        for number in range(order["sets"]):
            shift = number * order["stride"]
            storages = zip(order["storages"], order["fixed"], strict=True)
            places = [(at if fixed else at + shift, n) for (at, n), fixed in storages]
            self.sets.append(room.tensors({"storages": places, "tensors": order["tensors"]}))
        self.extra = {"packed": self.prepare(*self.sets[0])} if self.prepare else {}

    def do_drop(self, _order: dict[str, Any], _: list[int]) -> None:
        """Give the outputs of the last sprint back, so that the next one finds warm memory and frees nothing itself."""
        self.outs = []

    def do_sprint(self, order: dict[str, Any], _: list[int]) -> None:
        """Call the kernel once on each of `count` sets, writing down where every output lies."""
        kernel, extra, table, outs = self.kernel, self.extra, self.table, []
        sets = self.sets[: order["count"]]
        entry = 0
        gc.disable()
        for inputs in sets:
            outputs = kernel(*inputs, **extra)
            outs.append(outputs)
            for output in (outputs,) if type(outputs) is Tensor else outputs:
                table[entry] = output.data_ptr()
                entry += 1
        self.outs = outs
        gc.enable()

    def _export(self, outputs: Any) -> dict[str, Any]:
        leaves = (outputs,) if isinstance(outputs, Tensor) else outputs
        if type(leaves) not in (tuple, list):
            return {"outputs": [], "returned": type(outputs).__name__}
        described = []
        at = 0
        for leaf in leaves:
            entry: dict[str, Any] = {"type": type(leaf).__name__ if type(leaf) is not Tensor else "Tensor"}
            if isinstance(leaf, Tensor):
                entry |= {
                    "dtype": str(leaf.dtype).removeprefix("torch."),
                    "shape": list(leaf.shape),
                    "device": leaf.device.type,
                }
            if type(leaf) is Tensor and leaf.layout is torch.strided and leaf.device.type == "cpu":
                leaf = leaf.resolve_conj().resolve_neg()
                nbytes = arena.span(leaf.shape, leaf.stride()) * leaf.element_size()
                entry |= {"stride": list(leaf.stride()), "at": at, "nbytes": nbytes, "is_input": self._input_of(leaf)}
                if nbytes and at + nbytes <= self.outbox.nbytes:
                    ctypes.memmove(self.outbox.address + at, leaf.data_ptr(), nbytes)
                at += -(-nbytes // 128) * 128
            described.append(entry)
        return {"outputs": described, "returned": "tensors"}

    def _input_of(self, leaf: Tensor) -> int | None:
        for number, given in enumerate(self.inputs):
            if (
                leaf.numel()
                and given.numel()
                and leaf.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
            ):
                return number
        return None


def _poison(byte: int) -> None:
    """Have malloc fill what it hands out with this byte's complement; 0 turns it off. glibc only."""
    with suppress(AttributeError):  # another libc: uninitialised memory is then only seen by repeating the call
        ctypes.CDLL(None).mallopt(_M_PERTURB, byte)


def _module(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _told(error: BaseException) -> str:
    try:
        where = ""
        step = error.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename.endswith("candidate.py"):
                where = f" (line {step.tb_lineno})"
            step = step.tb_next
        return f"{type(error).__name__}: {str(error)[:600]}{where}"
    except BaseException:  # an exception's own __str__ is candidate code too
        return f"an exception of type {type(error).__name__} that cannot be shown"


if __name__ == "__main__":
    main()
