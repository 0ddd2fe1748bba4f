"""The fork server: a model that crashes, hangs or eats memory costs its own row and nothing else."""

from __future__ import annotations

import os
import signal
import time

from hotswap.benchmarks.sweep_kit.reached import reached
from hotswap.benchmarks.sweep_kit.row import Row
from hotswap.benchmarks.sweep_kit.server import Bounds, run_each


def work(name: str) -> Row:
    if name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "leave":
        os.write(1, b"last words")
        os._exit(7)
    if name == "hang":
        time.sleep(60)
    if name == "spin":
        reached("capture")
        while True:
            pass
    if name == "eat":
        eaten = bytearray(os.urandom(1 << 20)) * 512
        time.sleep(60)
        return Row(name, "patched", "", str(len(eaten)))
    return Row(name, "patched", "unpatch", "equal", {}, {"pid": os.getpid()})


def rows(*names: str, bounds: Bounds) -> dict[str, Row]:
    return {row.name: row for row in run_each(names, work, bounds)}


def test_each_model_has_a_process_of_its_own() -> None:
    found = rows("a", "b", bounds=Bounds(10.0, jobs=2))
    assert len({os.getpid(), found["a"].facts["pid"], found["b"].facts["pid"]}) == 3


def test_a_crash_is_a_row_and_the_next_model_runs() -> None:
    found = rows("crash", "leave", "a", bounds=Bounds(10.0))
    assert found["crash"].why == "crash: its process ended with signal 11"
    assert found["leave"].why == "crash: its process ended with exit code 7"
    assert "last words" in found["leave"].facts["output"]
    assert found["a"].outcome == "patched"


def test_a_hang_ends_when_it_has_long_not_used_the_cpu_and_a_spin_at_its_cpu_time() -> None:
    start = time.monotonic()
    found = rows("hang", "spin", bounds=Bounds(0.5, jobs=2))
    assert {row.outcome for row in found.values()} == {"failed"}
    assert found["hang"].why.endswith("without using the CPU")
    assert found["spin"].why.endswith("of CPU time")
    assert (found["hang"].stage, found["spin"].stage) == ("process", "capture")
    assert time.monotonic() - start < 30


def test_memory_is_bounded() -> None:
    found = rows("eat", bounds=Bounds(10.0, bytes=_resident_here() + (200 << 20)))
    assert found["eat"].why.startswith("memory:")


def _resident_here() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
