"""Whatever a candidate does, there is a verdict that names it, and the next candidate is judged normally at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from test_cheats import HONEST  # type: ignore[import-not-found]

from hotswap.optimizer.judge import Judge

GOOD = HONEST + "def kernel(x, weight): return right(x, weight)"
AT_ONCE_S = 10.0

# What it does, the stage that ends it and words of the reason.
BAD: dict[str, tuple[str, str]] = {
    "segfaults": ("import ctypes\ndef kernel(x, weight): ctypes.string_at(8)", "killed by SIGSEGV"),
    "hangs": ("import time\ndef kernel(x, weight): time.sleep(1000)", "no answer within 3 s"),
    "forks without end": (
        "import os\ndef kernel(x, weight):\n    while True:\n        try: os.fork()\n        except OSError: pass\n", ""
    ),
    "fills memory": ("def kernel(x, weight): return [torch.ones(1 << 34) for _ in range(99)]", "raised"),
    "fills the disk": (
        "def kernel(x, weight):\n    with open('big', 'wb') as out:\n        while True: out.write(bytes(1 << 24))\n",
        "",
    ),
    "floods stdout": (
        "import os\ndef kernel(x, weight):\n    for _ in range(999): os.write(1, b'PASS' * 9999)\n    return x * 0\n",
        "wrong at",
    ),
    "closes descriptors": (
        "import os\ndef kernel(x, weight):\n    os.closerange(0, 256)\n    return right(x, weight)\n", ""
    ),
    "sends signals": (
        "import os, signal\ndef kernel(x, weight):\n    os.kill(os.getpid(), signal.SIGTERM)\n    return x\n", "SIGTERM"
    ),
    "exits 0 early": ("import os\ndef kernel(x, weight): os._exit(0)", "exited with status 0"),
    "prints PASS": ("def kernel(x, weight):\n    print('PASS', flush=True)\n    return x * 0\n", "wrong at"),
    "opens a socket": ("import socket\ndef kernel(x, weight): socket.create_server(('', 0))", "PermissionError"),
    "writes into the run": ("def kernel(x, weight): return open(RUN + '/planted', 'w').close()", "raised"),
    "deletes the run": ("import shutil\ndef kernel(x, weight):\n    shutil.rmtree(RUN)\n    return x\n", "raised"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_candidate_gets_a_verdict_and_the_next_one_is_judged_at_once(name: str, judge32: Judge) -> None:
    source, why = BAD[name]
    run = judge32.folder
    files = sorted(p.name for p in run.iterdir())
    bad = judge32.verdict(HONEST + source.replace("RUN", repr(str(run))))
    assert (bad.accepted, bad.stage) == (False, "smoke")
    assert why in (bad.reason or ""), bad.reason
    assert sorted(p.name for p in run.iterdir()) == files
    started = time.monotonic()
    good = judge32.verdict(GOOD)
    assert good.accepted, good.reason
    assert time.monotonic() - started < AT_ONCE_S


def test_a_candidate_leaves_no_files_behind(judge32: Judge) -> None:
    mark = f"left-{os.urandom(4).hex()}"
    source = (
        "import os, tempfile\n"
        f"open('{mark}', 'w').close()\nopen(os.path.join(tempfile.gettempdir(), '{mark}'), 'w').close()\n"
    )
    assert judge32.verdict(source + GOOD).accepted
    assert not [p for top in ("/tmp", "/var/tmp", "/dev/shm") for p in Path(top).glob(f"**/{mark}")]
