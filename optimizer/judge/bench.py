"""What a worker does once it is shut in: load a kernel, call it on shared memory, and return what came out."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from . import arena, wire
from .library_calls import LibraryCalls
from .memory import opened_arena

_M_PERTURB = -6


class Bench:
    """One loaded kernel, the inputs it is called on and the outputs it gave."""

    device = "cpu"

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
                order, fds = wire.receive(self.sock, most_fds=wire.FDS)
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
        self.inbox = opened_arena(self.device, fds[0], order["in_bytes"])
        self.outbox = opened_arena(self.device, fds[1], order["out_bytes"])

    def do_layout(self, order: dict[str, Any], _: list[int]) -> None:
        self.inputs = self.inbox.tensors(order["layout"])

    def do_prepare(self, _order: dict[str, Any], _: list[int]) -> None:
        self.extra = {"packed": self.prepare(*self.inputs)} if self.prepare else {}

    def do_call(self, order: dict[str, Any], _: list[int]) -> dict[str, Any]:
        outputs = self._poisoned(order["poison"], order.get("out_sizes", []))
        answer = self._export(outputs)
        if order["keep"]:
            self.kept.append(outputs)
        return answer

    def do_seen(self, _order: dict[str, Any], _: list[int]) -> dict[str, Any]:
        """Call the kernel once more, and tell which ops of torch it called."""
        with LibraryCalls() as calls:
            self.kernel(*self.inputs, **self.extra)
        return {"names": sorted(calls.names)}

    def do_again(self, order: dict[str, Any], _: list[int]) -> dict[str, Any]:
        return self._export(self.kept[order["which"]])

    def do_pool(self, order: dict[str, Any], fds: list[int]) -> None:
        """Lay out many input sets in memory that the judge fills while this process is stopped; weights exist once."""
        self.outs, self.sets = [], []
        room, table = opened_arena(self.device, fds[0], order["bytes"]), arena.Arena(fds[1], order["table_bytes"])
        self.table = table.bytes_at(0, table.nbytes).view(torch.int64).numpy()
        for number in range(order["sets"]):
            shift = number * order["stride"]
            storages = zip(order["storages"], order["fixed"], strict=True)
            places = [(at if fixed else at + shift, n) for (at, n), fixed in storages]
            self.sets.append(room.tensors({"storages": places, "tensors": order["tensors"]}))
        self.extra = {"packed": self.prepare(*self.sets[0])} if self.prepare else {}

        self.room = room

    def do_drop(self, _order: dict[str, Any], _: list[int]) -> None:
        """Give the outputs of the last sprint back, so that the next one finds warm memory and frees nothing itself."""
        self.outs = []

    def do_sprint(self, order: dict[str, Any], _: list[int]) -> dict[str, Any]:
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
        return {}

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
            if type(leaf) is Tensor and leaf.layout is torch.strided and leaf.device.type == self.device:
                leaf = leaf.resolve_conj().resolve_neg()
                nbytes = arena.span(leaf.shape, leaf.stride()) * leaf.element_size()
                entry |= {"stride": list(leaf.stride()), "at": at, "nbytes": nbytes, "is_input": self._input_of(leaf)}
                if nbytes and at + nbytes <= self.outbox.nbytes:
                    self._copy_out(leaf, at, nbytes)
                at += -(-nbytes // 128) * 128
            described.append(entry)
        return {"outputs": described, "returned": "tensors"}

    def _poisoned(self, byte: int, _sizes: list[int]) -> Any:
        """Call the kernel while memory it is handed out holds this byte's complement."""
        _poison(byte)
        try:
            return self.kernel(*self.inputs, **self.extra)
        finally:
            _poison(0)

    def _copy_out(self, leaf: Tensor, at: int, nbytes: int) -> None:
        ctypes.memmove(self.outbox.address + at, leaf.data_ptr(), nbytes)

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
