"""Triton is made ready in the parent of workers, without a device; what was compiled for that is met by nobody."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

READY = """
import logging
import os
import tempfile


from hotswap.optimizer.judge.fill_kernel import fill
from hotswap.optimizer.judge.warm_triton import warm_triton

logging.disable()
before = len(os.listdir("/proc/self/task"))
warm_triton(90)
assert len(os.listdir("/proc/self/task")) == before, "a fork would lose its threads"
assert "TRITON_CACHE_DIR" not in os.environ
assert not fill.device_caches

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

pid = os.fork()
if not pid:
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    signature = {"rooms": "*fp32", "sources": "*fp32", "which": "*i64", "first": "*i64", "by": "*fp32", "count": "i32"}
    signature |= dict.fromkeys(("room_stride", "source_stride"), "i32")
    constants = {"SCALED": True, "ALIGNED": 1, "BLOCK": 64}
    signature |= dict.fromkeys(constants, "constexpr")
    made = triton.compile(ASTSource(fill, signature, constants), target=GPUTarget("cuda", 90, 32))
    os._exit(0 if made.asm["cubin"] else 1)
assert os.waitpid(pid, 0)[1] == 0, "a fork cannot compile"
"""


def test_a_fork_of_what_is_ready_compiles() -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READY], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]


AT_HOME = """
import sys
import tempfile

from hotswap.optimizer.judge.worker import _at_home

assert tempfile.gettempdir() != sys.argv[1]
_at_home(sys.argv[1], confined=True)
sys.exit(0 if tempfile.gettempdir() == sys.argv[1] else 1)
"""


def test_a_worker_puts_temporary_files_into_its_own_folder_wherever_its_parent_put_them(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", AT_HOME, str(tmp_path)], check=False, timeout=120)
    assert done.returncode == 0
