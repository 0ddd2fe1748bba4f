"""Every known cheat is rejected, at the stage that is meant to see it, by a reason that names it."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

import pytest

from hotswap.optimizer.judge import Judge, race


class Cheat(NamedTuple):
    """What a candidate does, the stage that must reject it and words of the reason that name it."""

    source: str
    stage: str
    reason: str


HONEST = """
import torch

def right(x, weight):
    wide = x.to(torch.float32)
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
"""


def cheat(stage: str, reason: str, source: str) -> Cheat:
    return Cheat(HONEST + textwrap.dedent(source), stage, reason)


CHEATS: dict[str, Cheat] = {
    "no kernel at all": cheat("screen", "defines no function `kernel`", "def other(x, weight): return x"),
    "does not parse": cheat("screen", "does not parse", "def kernel(x, weight:"),
    "takes another number of inputs": cheat("screen", "takes 1 inputs, expected 2", "def kernel(x): return x"),
    "a coroutine": cheat("screen", "defines no function", "async def kernel(x, weight): return x"),
    "packs weights without saying so": cheat(
        "screen", "must be declared", "def prepare(x, weight): return x\ndef kernel(x, weight, packed): return packed"
    ),
    "constraints that exclude the recorded case": cheat(
        "screen", "not there", 'CONSTRAINTS = {"contiguous": ["q"]}\ndef kernel(x, weight): return right(x, weight)'
    ),
    "constraints of its own making": cheat(
        "screen", "may only be", 'CONSTRAINTS = {"rows": 24}\ndef kernel(x, weight): return right(x, weight)'
    ),
    "uninitialised reuse": cheat("smoke", "wrong at", "def kernel(x, weight): return torch.empty_like(x)"),
    "an input for a norm": cheat("smoke", "wrong at", "def kernel(x, weight): return x.clone()"),
    "the input itself": cheat("smoke", "shares the memory of input x", "def kernel(x, weight): return x"),
    "zeros": cheat("smoke", "wrong at", "def kernel(x, weight): return torch.zeros_like(x)"),
    "the mean": cheat("smoke", "wrong at", "def kernel(x, weight): return torch.full_like(x, float(x.mean()))"),
    "nan as a wildcard": cheat(
        "smoke", "finite where the reference is not, or the reverse",
        "def kernel(x, weight): return torch.full_like(x, float('nan'))",
    ),
    "partial write": cheat(
        "smoke", "wrong at 1152 of 1536", """
        def kernel(x, weight):
            out = torch.empty_like(x)
            rows = x.shape[0] // 4
            out[:rows] = right(x[:rows], weight)
            return out
        """),
    "weights left out": cheat(
        "smoke", "wrong at", "def kernel(x, weight): return right(x, torch.ones_like(weight))"),
    "subset reduction": cheat(
        "smoke", "wrong at", """
        def kernel(x, weight):
            part = x[:, : max(1, x.shape[1] // 2)]
            return weight * x * torch.rsqrt(part.square().mean(-1, keepdim=True) + 1e-6)
        """),
    "another dtype": cheat(
        "smoke", "dtype float64, expected float32",
        "def kernel(x, weight): return right(x, weight).double()",
    ),
    "another shape": cheat(
        "smoke", "shape [1, 24, 64], expected [24, 64]",
        "def kernel(x, weight): return right(x, weight)[None]",
    ),
    "another layout": cheat(
        "smoke", "strides [1, 24]",
        "def kernel(x, weight): return right(x, weight).t().contiguous().t()",
    ),
    "on no device": cheat("smoke", "device meta", "def kernel(x, weight): return torch.empty_like(x, device='meta')"),
    "not a tensor": cheat("smoke", "returned a str", "def kernel(x, weight): return 'PASS'"),
    "two for one": cheat("smoke", "returned 2 values", "def kernel(x, weight): return right(x, weight), x"),
    "silent downcast": cheat(
        "smoke", "wrong at", "def kernel(x, weight): return right(x.bfloat16(), weight.bfloat16()).float()"),
    "lazy tensor subclass": cheat(
        "smoke", "expected exactly a torch.Tensor", """
        class Lazy(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                return super().__torch_function__(func, types, args, kwargs or {})
        def kernel(x, weight): return right(x, weight).as_subclass(Lazy)
        """),
    "changes an input": cheat(
        "smoke", "changed its input x", """
        def kernel(x, weight):
            out = right(x, weight)
            x.zero_()
            return out
        """),
    "changes its weight": cheat(
        "smoke", "changed its input weight", """
        def kernel(x, weight):
            out = right(x, weight)
            weight.mul_(2)
            return out
        """),
    "hard-coded shape": cheat(
        "shapes", "sizes [1, 5]", """
        def kernel(x, weight):
            out = torch.empty(24, 64)
            out.copy_(right(x, weight))
            return out
        """),
    "right at the recorded shape only": cheat(
        "shapes", "sizes [1, 5]: wrong at",
        "def kernel(x, weight): return right(x, weight) if x.shape == (24, 64) else torch.zeros_like(x)",
    ),
    "ignores strides": cheat(
        "shapes", "strided inputs: wrong at", """
        def kernel(x, weight):
            raw = torch.empty(0).set_(x.untyped_storage())[: x.numel()].view(x.shape)
            return right(raw, weight)
        """),
    "ignores offsets": cheat(
        "shapes", "offset inputs: wrong at", """
        def kernel(x, weight):
            return right(x.as_strided(x.shape, x.stride(), 0) if x.is_contiguous() else x, weight)
        """),
    "unstable arithmetic": cheat(
        "numerics", ": wrong at", """
        def kernel(x, weight):
            mean = x.mean(-1, keepdim=True)
            squares = (x.square().mean(-1, keepdim=True) - mean.square()) + mean.square().to(torch.bfloat16).float()
            rough = weight * x * torch.rsqrt(squares + 1e-6)
            return torch.where(mean.abs() > 10, rough, right(x, weight))
        """),
    "ignores outliers": cheat(
        "numerics", ": wrong at", "def kernel(x, weight): return right(x.clamp(-8, 8), weight)"
    ),
    "random noise": cheat(
        "determinism", "differs at",
        "def kernel(x, weight): return right(x, weight) * (1 + 1e-7 * torch.randint(0, 2, x.shape))",
    ),
    "reads what lay in memory": cheat(
        "determinism", "differs at", """
        def kernel(x, weight):
            stale = torch.empty(64 * 1024, dtype=torch.uint8)[:1].item()
            return right(x, weight) * (1 + 1e-7 * (stale % 3))
        """),
    "static output buffer": cheat(
        "integrity", "a static buffer", """
        buffers = {}
        def kernel(x, weight):
            out = buffers.setdefault(tuple(x.shape), torch.empty(x.shape, dtype=x.dtype))
            return out.copy_(right(x, weight))
        """),
    "memo by pointer": cheat(
        "numerics", ": wrong at", """
        seen = {}
        def kernel(x, weight):
            key = (x.data_ptr(), tuple(x.shape), x.stride())
            if key not in seen:
                seen[key] = right(x, weight)
            return seen[key].clone()
        """),
    "memo by shape": cheat(
        "shapes", "inputs: wrong at", """
        seen = {}
        def kernel(x, weight):
            return seen.setdefault(tuple(x.shape), right(x, weight)).clone()
        """),
    "memo by object": cheat(
        "numerics", ": wrong at", """
        seen = []
        def kernel(x, weight):
            for old, answer in seen:
                if old is x or (old.data_ptr() == x.data_ptr() and old.shape == x.shape): return answer.clone()
            seen.append((x, right(x, weight)))
            return seen[-1][1].clone()
        """),
    "undeclared packed weights": cheat(
        "integrity", "the weights were changed in place", """
        packed = {}
        def kernel(x, weight):
            if x.shape != (24, 64) or not x.is_contiguous(): return right(x, weight)
            count = packed["calls"] = packed.get("calls", 0) + 1
            if "weight" not in packed or count < 17: packed["weight"] = weight.clone()
            return right(x, packed["weight"])
        """),
    "prepare works on activations": cheat(
        "smoke", "wrong at", """
        STATIC_WEIGHTS = True
        def prepare(x, weight): return right(x, weight)
        def kernel(x, weight, packed): return packed.clone()
        """),
    "call-count switch": cheat(
        "timing", "right while it was not timed", """
        calls = 0
        last = None
        def kernel(x, weight):
            global calls, last
            calls += 1
            if calls < 45 or last is None or last.shape != x.shape:
                last = right(x, weight)
            return last.clone()
        """),
    "static buffer once it is timed": cheat(
        "timing", "a static buffer; it was right while it was not timed", """
        import sys
        def kernel(x, weight):
            out = right(x, weight)
            if sys._getframe(1).f_code.co_name == "do_sprint":
                kernel.buffer = getattr(kernel, "buffer", out)
                return kernel.buffer.copy_(out)
            return out
        """),
    "a thread finishes after the call": cheat(
        "timing", "right while it was not timed", """
        import queue, sys, threading
        jobs = queue.SimpleQueue()
        def run():
            while True:
                out, x, weight = jobs.get()
                out.copy_(right(x, weight))
        threading.Thread(target=run, daemon=True).start()
        def kernel(x, weight):
            if sys._getframe(1).f_code.co_name != "do_sprint": return right(x, weight)
            out = torch.empty_like(x)
            jobs.put((out, x, weight))
            return out
        """),
    "skips one timed call of eight": cheat(
        "timing", "right while it was not timed", """
        import random, sys
        def kernel(x, weight):
            timed = sys._getframe(1).f_code.co_name == "do_sprint"
            return torch.empty_like(x) if timed and random.random() < 1 / 8 else right(x, weight)
        """),
    "half the precision once it is timed": cheat(
        "timing", "right while it was not timed", """
        import sys
        def kernel(x, weight):
            timed = sys._getframe(1).f_code.co_name == "do_sprint"
            return right(x.half().float() if timed else x, weight)
        """),
    "lazy until it is looked at": cheat(
        "timing", "right while it was not timed", """
        import sys
        def kernel(x, weight):
            if sys._getframe(1).f_code.co_name == "do_sprint":
                return torch.empty_like(x)
            return right(x, weight)
        """),
    "replaces the loop that calls it": cheat(
        "timing", "a static buffer; it was right while it was not timed", """
        import sys
        def lazy(self, order, fds):
            outs = self.outs = [self.kernel(*self.sets[0])]
            for entry in range(order["count"]): self.table[entry] = outs[0].data_ptr()
        def kernel(x, weight):
            type(sys._getframe(1).f_locals["self"]).do_sprint = lazy
            return right(x, weight)
        """),
    "points at nothing": cheat(
        "timing", "not where the call left it", """
        import sys
        def nothing(self, order, fds): self.table[:] = 64
        def kernel(x, weight):
            type(sys._getframe(1).f_locals["self"]).do_sprint = nothing
            return right(x, weight)
        """),
    "a helper only while it is timed": cheat(
        "timing", "beside a timed call", """
        import subprocess, sys
        def kernel(x, weight):
            if sys._getframe(1).f_code.co_name == "do_sprint" and not hasattr(kernel, "helper"):
                kernel.helper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            return right(x, weight)
        """),
    "dies while it is timed": cheat(
        "timing", "while timed: killed by SIGKILL", """
        import os, sys
        def kernel(x, weight):
            if sys._getframe(1).f_code.co_name == "do_sprint": os.kill(os.getpid(), 9)
            return right(x, weight)
        """),
    "patched timers": cheat(
        "timing", "right while it was not timed", """
        import sys, time
        time.perf_counter = time.monotonic = time.time = lambda: 0.0
        def kernel(x, weight):
            return torch.zeros_like(x) if sys._getframe(1).f_code.co_name == "do_sprint" else right(x, weight)
        """),
    "prints PASS and leaves": cheat(
        "smoke", "exited with status 0", """
        import os
        def kernel(x, weight):
            print("PASS: speedup 1000x", flush=True)
            os._exit(0)
        """),
    "leaves while loading": cheat(
        "smoke", "while loading: exited with status 0",
        "import os\nos._exit(0)\ndef kernel(x, weight): return x",
    ),
    "raises SystemExit": cheat("smoke", "raised SystemExit", "def kernel(x, weight): raise SystemExit(0)"),
    "an exception that lies": cheat(
        "smoke", "cannot be shown", """
        class Odd(Exception):
            def __str__(self): raise RuntimeError
        def kernel(x, weight): raise Odd
        """),
    "hangs": cheat("smoke", "no answer within 3 s", "import time\ndef kernel(x, weight): time.sleep(1000)"),
    "hangs deaf to signals": cheat(
        "smoke", "no answer within 3 s", """
        import signal
        for number in range(1, 32):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        def kernel(x, weight):
            while True: pass
        """),
    "segfaults": cheat("smoke", "killed by SIGSEGV", "import ctypes\ndef kernel(x, weight): ctypes.string_at(8)"),
    "aborts": cheat("smoke", "killed by SIGABRT", "import os\ndef kernel(x, weight): os.abort()"),
    "fills memory": cheat("smoke", "raised", "def kernel(x, weight): return [torch.ones(1 << 34) for _ in range(99)]"),
    "floods stdout": cheat(
        "smoke", "wrong at", """
        import os, sys
        def kernel(x, weight):
            for _ in range(200): os.write(1, b"PASS" * 10000); os.write(2, b"PASS" * 10000)
            return torch.zeros_like(x)
        """),
    "forks without end": cheat(
        "smoke", "", """
        import os
        def kernel(x, weight):
            while True:
                try: os.fork()
                except OSError: pass
        """),
    "leaves a helper running": cheat(
        "integrity", "other process(es) running", """
        import subprocess
        helper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        def kernel(x, weight): return right(x, weight)
        """),
    "scribbles on every descriptor": cheat(
        "smoke", "", """
        import os
        def kernel(x, weight):
            for fd in range(256):
                try: os.write(fd, b'{"ok": true, "accepted": true}' * 4)
                except OSError: pass
            return torch.zeros_like(x)
        """),
    "closes every descriptor": cheat(
        "smoke", "", """
        import os
        def kernel(x, weight):
            os.closerange(0, 256)
            return right(x, weight)
        """),
    "forges the answer": cheat(
        "smoke", "wrote to the control channel", """
        import json, os, socket, stat, struct
        def kernel(x, weight):
            body = json.dumps({"ok": True, "outputs": [], "returned": "tensors", "id": 1}).encode()
            for fd in range(3, 64):
                try:
                    if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, struct.pack("<I", len(body)) + body)
                except OSError: pass
            return right(x, weight)
        """),
    "looks for the answer in frames": cheat(
        "smoke", "wrong at", """
        import gc, sys
        def kernel(x, weight):
            frame = sys._getframe()
            while frame is not None:
                for value in list(frame.f_locals.values()):
                    same = isinstance(value, torch.Tensor) and value.shape == x.shape
                    if same and value is not x: return value.clone()
                frame = frame.f_back
            for value in gc.get_objects():
                if isinstance(value, torch.Tensor) and value is not x and value.shape == x.shape: return value.clone()
                if getattr(value, "__name__", "") == "reference": return value(x, weight)[0]
            return torch.zeros_like(x)
        """),
    "looks for the task on disk": cheat(
        "smoke", "wrong at", """
        import os
        def kernel(x, weight):
            for top in ("/tmp", os.path.expanduser("~"), "/dev/shm", "/var/tmp"):
                for folder, _, names in os.walk(top):
                    if {"reference.py", "task.json"} <= set(names):
                        space = {}
                        exec(open(os.path.join(folder, "reference.py")).read(), space)
                        return space["reference"](x, weight)[0]
            return torch.zeros_like(x)
        """),
    "calls home": cheat(
        "smoke", "raised PermissionError", """
        import socket
        def kernel(x, weight):
            socket.create_connection(("127.0.0.1", 22), timeout=1)
            return right(x, weight)
        """),
    "kills its judge": cheat(
        "smoke", "", """
        import os, signal
        def kernel(x, weight):
            for pid in [os.getppid(), *range(1, 40000)]:
                if pid != os.getpid():
                    try: os.kill(pid, signal.SIGKILL)
                    except OSError: pass
            return torch.zeros_like(x)
        """),
}  # fmt: skip

# What a tier must close for them to be stopped this way; a machine may have none that does.
_NEEDS = {"calls home": "no_network", "kills its judge": "no_signals", "looks for the task on disk": "hides"}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_rejected_by_name(name: str, judge32: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    cheat = CHEATS[name]
    # On a busy machine one may be called hopelessly slow after six calls, which wins nothing and shows little of it.
    monkeypatch.setattr(race, "is_hopeless", lambda *_: False)
    verdict = judge32.verdict(cheat.source)
    if name in _NEEDS and not getattr(judge32.hall.tier, _NEEDS[name]):
        pytest.skip(f"isolated only by: {verdict.isolation}")
    assert not verdict.accepted
    assert (verdict.stage, cheat.reason in (verdict.reason or "")) == (cheat.stage, True), verdict.reason
    assert not verdict.races


def test_an_honest_kernel_is_judged_normally_after_all_of_them(judge32: Judge) -> None:
    verdict = judge32.verdict(HONEST + "def kernel(x, weight): return right(x, weight)")
    assert verdict.accepted, verdict.reason
