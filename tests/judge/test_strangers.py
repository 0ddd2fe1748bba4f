"""Cheats of a stranger who has read the judge: they act only while time is taken, or aim at the judge itself."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from test_cheats import HONEST, Cheat  # type: ignore[import-not-found]

from hotswap.optimizer.judge import Judge, race

UNTIMED = "it was right while it was not timed"


def cheat(reason: str, source: str) -> Cheat:
    return Cheat(HONEST + textwrap.dedent(source), "timing", reason)


STRANGERS: dict[str, Cheat] = {
    "packs its weights once it is timed": cheat(
        UNTIMED, """
        import sys
        def kernel(x, weight):
            if sys._getframe(1).f_code.co_name != "do_sprint": return right(x, weight)
            kernel.packed = getattr(kernel, "packed", weight.clone())
            return right(x, kernel.packed)
        """),
    "ignores outliers once it is timed": cheat(
        UNTIMED, """
        import sys
        def kernel(x, weight):
            timed = sys._getframe(1).f_code.co_name == "do_sprint"
            return right(x.clamp(-8, 8) if timed else x, weight)
        """),
    "makes all calls of a sprint together": cheat(
        "calls are made together", """
        import sys, time
        def kernel(x, weight):
            caller = sys._getframe(1)
            if caller.f_code.co_name != "do_sprint": return right(x, weight)
            if x is caller.f_locals["sets"][0][0]:
                kernel.ready = iter([right(*one) for one in caller.f_locals["sets"]])
                time.sleep(0.02)
            return next(kernel.ready)
        """),
    "says that calls are done before they are": cheat(
        UNTIMED, """
        import sys, time
        def together(self, order, fds):
            sets = self.sets[: order["count"]]
            self.outs = [torch.empty_like(x) for x, _ in sets]
            for entry, out in enumerate(self.outs): self.table[entry] = out.data_ptr()
            time.sleep(0.02)
            for out, one in zip(self.outs, sets): out.copy_(right(*one))
        def kernel(x, weight):
            caller = sys._getframe(1)
            if caller.f_code.co_name == "do_sprint": type(caller.f_locals["self"]).do_sprint = together
            return right(x, weight)
        """),
    "answers before it has worked": cheat(
        UNTIMED, """
        import sys, time
        def early(self, order, fds):
            from hotswap.optimizer.judge import wire
            sets = self.sets[: order["count"]]
            outs = self.outs = [torch.empty_like(x) for x, _ in sets]
            for entry, out in enumerate(outs): self.table[entry] = out.data_ptr()
            wire.send(self.sock, {"ok": True, "id": order["id"]})
            time.sleep(0.01)
            for out, one in zip(outs, sets): out.copy_(right(*one))
            answered, wire.send = wire.send, lambda *_: setattr(wire, "send", answered)
        def kernel(x, weight):
            caller = sys._getframe(1)
            if caller.f_code.co_name == "do_sprint": type(caller.f_locals["self"]).do_sprint = early
            return right(x, weight)
        """),
    "answers the next question too": cheat(
        "an answer to no question", """
        import json, struct, sys
        def kernel(x, weight):
            caller = sys._getframe(1)
            if caller.f_code.co_name == "do_sprint" and not hasattr(kernel, "ahead"):
                kernel.ahead = json.dumps({"ok": True, "id": 0}).encode()
                caller.f_locals["self"].sock.sendall(struct.pack("<I", len(kernel.ahead)) + kernel.ahead)
            return right(x, weight)
        """),
    "works while its inputs are filled": cheat(
        UNTIMED, """
        import sys, threading, time
        def work(outs, sets):
            time.sleep(0.03)
            outs[0].copy_(right(*sets[0]))
            time.sleep(0.04)  # so that a judge who is late to stop it does not find the rest done
            for out, one in zip(outs, sets): out.copy_(right(*one))
        def drop(self, order, fds):
            self.outs = []
            self.ahead = [torch.empty_like(x) for x, _ in self.sets]
            threading.Thread(target=work, args=(self.ahead, self.sets), daemon=True).start()
        def sprint(self, order, fds):
            self.outs = self.ahead[: order["count"]]
            for entry, out in enumerate(self.outs): self.table[entry] = out.data_ptr()
        def kernel(x, weight):
            caller = sys._getframe(1)
            if caller.f_code.co_name == "do_sprint":
                bench = type(caller.f_locals["self"])
                bench.do_drop, bench.do_sprint = drop, sprint
            return right(x, weight)
        """),
    "wakes itself while it is stopped": cheat(
        "while it was stopped", """
        import ctypes, signal, sys, threading
        libc = ctypes.CDLL(None)
        signal.signal(signal.SIGCONT, lambda *_: None)
        timer = ctypes.c_void_p()
        assert libc.timer_create(1, (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0), ctypes.byref(timer)) == 0
        def ahead():
            while True: torch.ones(100).sum()
        def drop(self, order, fds):
            self.outs = []
            libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, 30_000_000), None)
        def kernel(x, weight):
            caller = sys._getframe(1)
            if caller.f_code.co_name == "do_sprint" and not hasattr(kernel, "thread"):
                kernel.thread = threading.Thread(target=ahead, daemon=True)
                kernel.thread.start()
                type(caller.f_locals["self"]).do_drop = drop
            return right(x, weight)
        """),
    "a helper only while its inputs are filled": cheat(
        "beside a timed call", """
        import os, sys, time
        def drop(self, order, fds):
            self.outs = []
            if not os.fork():
                stopped = began = time.monotonic()
                while time.monotonic() - began < 2 and time.monotonic() - stopped < 0.005:
                    state = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[0]
                    if state == "T": stopped = time.monotonic()
                os._exit(0)
        def kernel(x, weight):
            caller = sys._getframe(1)
            if caller.f_code.co_name == "do_sprint": type(caller.f_locals["self"]).do_drop = drop
            return right(x, weight)
        """),
    "leaves cleanly between two blocks": cheat(
        "while timed: exited with status 0", """
        import os, sys
        def drop(self, order, fds): os._exit(0)
        def kernel(x, weight):
            caller = sys._getframe(1)
            if caller.f_code.co_name == "do_sprint": type(caller.f_locals["self"]).do_drop = drop
            return right(x, weight)
        """),
    "hangs once it is timed": cheat(
        "while timed: no answer within 9 s", """
        import sys, time
        def kernel(x, weight):
            if sys._getframe(1).f_code.co_name == "do_sprint": time.sleep(1000)
            return right(x, weight)
        """),
    "looks for other inputs in memory": Cheat(HONEST + textwrap.dedent("""
        import gc
        def kernel(x, weight):
            found = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape == x.shape and t is not x]
            maps = [line for line in open("/proc/self/maps") if "memfd:hotswap" in line]
            with open("/proc/self/mem", "rb", 0) as memory:
                for line in maps:
                    start, end = (int(part, 16) for part in line.split()[0].split("-"))
                    memory.seek(start)
                    raw = torch.frombuffer(bytearray(memory.read(min(end - start, 1 << 20))), dtype=torch.float32)
                    if line is not maps[0] and raw.numel() >= x.numel(): found.append(raw[: x.numel()].view(x.shape))
            return found[0].clone() if found else torch.zeros_like(x)
        """), "smoke", "wrong at"),
}  # fmt: skip

NEEDS_TIME = {"works while its inputs are filled": 0.15, "wakes itself while it is stopped": 0.1}


def make_room(name: str, patch: pytest.MonkeyPatch) -> None:
    """Lengthen what a cheat needs to be shown on a busy machine: the fill, and sprints that are called hopeless."""
    if name in NEEDS_TIME:
        patch.setattr("hotswap.optimizer.judge.stillness._SETTLE_S", NEEDS_TIME[name])
    patch.setattr(race, "is_hopeless", lambda *_: False)


@pytest.mark.parametrize("name", STRANGERS)
def test_a_strangers_cheat_is_rejected_by_name(name: str, judge32: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    make_room(name, monkeypatch)
    found = judge32.verdict(STRANGERS[name].source)
    assert not found.accepted
    assert (found.stage, STRANGERS[name].reason in (found.reason or "")) == (STRANGERS[name].stage, True), found.reason


def test_a_process_that_changed_its_own_ways_changes_nobody_elses(judge32: Judge) -> None:
    odd = """
        import ctypes, os
        ctypes.CDLL("libm.so.6").fesetround(0x800)
        torch.set_flush_denormal(True)
        torch.set_num_threads(8)
        os.nice(19)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        def kernel(x, weight): return right(x, weight)
        """
    judge32.verdict(HONEST + textwrap.dedent(odd))
    honest = judge32.verdict(HONEST + "def kernel(x, weight): return right(x, weight)")
    assert honest.accepted, honest.reason


def test_a_reason_holds_nothing_that_a_terminal_obeys(judge32: Judge) -> None:
    found = judge32.verdict(HONEST + "def kernel(x, weight): raise ValueError('\\x1b[2J\\raccepted')")
    assert found.stage == "smoke"
    assert (found.reason or "").replace("\n", "").isprintable()


def test_a_kernel_sloppy_at_large_shapes_alone_is_rejected(
    make_task: Callable[..., Path], quick: Callable[[Path], Judge]
) -> None:
    import torch

    x = torch.randn(520, 256, generator=torch.Generator().manual_seed(11))
    folder = make_task("def reference(x):\n    return (x.tanh() * x,)\n", {"x": x}, symbols=(((0, 0),), ((0, 1),)))
    sloppy = "def kernel(x):\n    y = x.clamp(-8, 8) if x.numel() > 1 << 17 else x\n    return y.tanh() * y\n"
    with quick(folder) as judge:
        assert judge.verdict("def kernel(x): return x.tanh() * x").accepted
        found = judge.verdict(sloppy)
    assert found.stage == "numerics"
    assert "every family by turns: wrong at" in (found.reason or "")
