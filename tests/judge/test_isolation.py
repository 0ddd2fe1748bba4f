"""What a candidate can reach from inside each tier: what the tier claims, and no more. Every tier is forced in turn."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hotswap.models.cache import cache_dir
from hotswap.optimizer.judge import Judge, arena
from hotswap.optimizer.judge.hall import Hall, WorkerError
from hotswap.optimizer.judge.isolation import TIERS, Tier

HONEST = """
import torch
def kernel(x, weight):
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
"""
# Each way out is one figure; a name that stands alone is filled in.
SPY = """
import ctypes, errno, os, socket, torch
libc = ctypes.CDLL(None, use_errno=True)
def fails(number, *args):
    return libc.syscall(number, *args) == -1 and ctypes.get_errno() == errno.EPERM
def connects():
    try:
        with socket.socket() as sock: sock.connect(("127.0.0.1", 1))
    except ConnectionRefusedError: return True
    except OSError: return False
    return True
def signals():
    try: os.kill(JUDGE, 0)
    except OSError: return False
    return os.getpid() != JUDGE
def reads(path):
    try:
        with open(path, "rb") as file: return len(file.read(1)) == 1
    except OSError: return False
def remembers(pid, address):
    try:
        with open(f"/proc/{pid}/mem", "rb", 0) as file: return len(os.pread(file.fileno(), 1, address)) == 1
    except OSError: return False
def writes(folder):
    try:
        with open(folder + "/planted", "w") as file: return file.write("x") == 1
    except OSError: return False
def kernel(x):
    return torch.tensor([
        connects(), signals(), reads(TASK + "/reference.py"), writes(TASK), remembers(JUDGE, ADDRESS),
        reads(f"/proc/{JUDGE}/environ"), "MY_TOKEN" in os.environ, not fails(101, 9999, JUDGE, 0, 0), not fails(272, 0),
    ])
"""
WAYS = (
    "network", "signals", "reads the task", "writes to the task", "reads the judge's memory",
    "reads the judge's environment", "sees a token", "may trace", "may unshare",
)  # fmt: skip


def names(tier: Tier) -> str:
    return tier.description.removeprefix("own process, ")


@pytest.fixture
def force(halls: Callable[[str], Hall]) -> Iterator[Callable[[Tier], Hall]]:
    """Make the session's hall use a tier for one test, or skip where this machine refuses it."""
    hall = halls("cpu")
    best = (hall.isolation, hall.tier)[1]

    def use(tier: Tier) -> Hall:
        try:
            hall.use(tier)
        except WorkerError as error:
            pytest.skip(f"not to be had here: {error}")
        return hall

    yield use
    hall.use(best)


def answer(hall: Hall, source: str) -> list[bool]:
    """Return what a candidate says of itself in a worker of the tier in use."""
    worker = hall.worker()
    try:
        worker.ask("load", seconds=20.0, source=source)
        layout, nbytes = arena.plan([torch.zeros(1)])
        _, outbox = worker.arenas(nbytes, 4096)
        worker.ask("layout", seconds=20.0, layout=layout)
        row = worker.ask("call", seconds=20.0, poison=0, keep=False)["outputs"][0]
        said: list[bool] = outbox.bytes_at(row["at"], row["nbytes"]).view(torch.bool).tolist()
        return said
    finally:
        worker.end()


def spied(hall: Hall, task: Path) -> dict[str, bool]:
    hall.hide(str(task))
    source = SPY.replace("JUDGE", str(os.getpid())).replace("TASK", repr(str(task)))
    source = source.replace("ADDRESS", str(_own_address()))
    return dict(zip(WAYS, answer(hall, source), strict=True))


def _own_address() -> int:
    return int(Path("/proc/self/maps").read_text().partition("-")[0], 16)


@pytest.mark.parametrize("tier", TIERS, ids=names)
def test_an_honest_kernel_is_accepted_in_every_tier_and_the_verdict_names_it(
    tier: Tier, force: Callable[[Tier], Hall], judge32: Judge
) -> None:
    force(tier)
    verdict = judge32.verdict(HONEST)
    assert verdict.accepted, f"{verdict.stage}: {verdict.reason}"
    assert verdict.isolation.startswith(tier.description)


@pytest.mark.parametrize("tier", TIERS, ids=names)
def test_a_candidate_reaches_nothing_that_its_tier_claims_to_close(
    tier: Tier, force: Callable[[Tier], Hall], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    task = tmp_path / "task"
    task.mkdir()
    (task / "reference.py").write_text("def reference(x): ...")
    found = spied(force(tier), task)
    apart = tier.own_id or tier.hides
    closed = {
        "network": tier.no_network, "signals": tier.no_signals, "reads the task": tier.hides,
        "writes to the task": apart, "reads the judge's memory": apart, "reads the judge's environment": apart,
        "sees a token": True, "may trace": tier.filtered, "may unshare": tier.filtered,
    }  # fmt: skip
    assert [way for way, shut in closed.items() if shut and found[way]] == []


def test_without_its_filter_a_process_may_trace_unshare_and_reach_the_network(
    force: Callable[[Tier], Hall], tmp_path: Path
) -> None:
    open_tier = Tier("process", 0, own_id=False, filtered=False)
    found = spied(force(open_tier), tmp_path)
    assert found["network"]
    assert found["may unshare"]
    shut = spied(force(replace(open_tier, filtered=True)), tmp_path)
    assert not shut["network"]
    assert not shut["may unshare"]


def test_without_its_fence_a_process_reads_and_writes_the_task(force: Callable[[Tier], Hall], tmp_path: Path) -> None:
    (tmp_path / "reference.py").write_text("def reference(x): ...")
    open_tier = Tier("process", 0, own_id=False)
    found = spied(force(open_tier), tmp_path)
    assert found["reads the task"]
    assert found["writes to the task"]
    shut = spied(force(replace(open_tier, fenced=True)), tmp_path)
    assert not shut["reads the task"]
    assert not shut["writes to the task"]
    assert not shut["reads the judge's memory"]


def test_a_tier_in_which_a_known_candidate_gets_out_is_refused(halls: Callable[[str], Hall]) -> None:
    class Boasting(Tier):
        no_network = True

    boast = Boasting("process", 0, own_id=False, filtered=False)
    hall = halls("cpu")
    before = hall.isolation
    with pytest.raises(WorkerError, match="a known candidate reached a network"):
        hall.use(boast)
    assert hall.isolation == before


def test_a_tier_that_this_machine_refuses_is_skipped_by_name() -> None:
    impossible = Tier("a namespace nobody knows", 0x10, own_id=False)
    with Hall(threads=1, tiers=(impossible, TIERS[-1])) as hall:
        assert hall.isolation.startswith(TIERS[-1].description)
        assert "not to be had here: own process, a namespace nobody knows" in hall.isolation
        hall.worker().end()


@pytest.mark.parametrize("tier", TIERS, ids=names)
def test_what_a_candidate_started_is_seen_and_ends_with_it(tier: Tier, force: Callable[[Tier], Hall]) -> None:
    hall = force(tier)
    mark = f"sleep-{os.urandom(4).hex()}"
    source = (
        "import os, subprocess, torch\n"
        f"subprocess.Popen(['/bin/sh', '-c', 'sleep 1000; : {mark}'], start_new_session=True)\n"
        "def kernel(x): return x\n"
    )
    worker = hall.worker()
    worker.ask("load", seconds=20.0, source=source)
    assert worker.others() >= 1
    assert _comes_true(lambda: _running(mark))  # it is counted before it has become what it was started as
    worker.end()
    assert _comes_true(lambda: not _running(mark))


def _comes_true(fact: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5.0
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.01)
    return fact()


def _running(mark: str) -> bool:
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in line.read_bytes():
                return True
        except OSError:
            continue
    return False


OUTLASTS = """
import ctypes, os, torch
def kernel(x):
    return torch.tensor([ctypes.CDLL(None).shmget(0, 4096, 0o1600) == -1, os.statvfs(".").f_files <= 1 << 16])
"""


def test_a_candidate_gets_no_shared_memory_that_outlasts_it_and_not_files_without_end(
    halls: Callable[[str], Hall],
) -> None:
    hall = halls("cpu")
    refused, bounded = answer(hall, OUTLASTS)
    assert refused or not hall.tier.filtered
    assert bounded or not hall.tier.ends_whole


def test_the_cache_of_winners_and_of_the_rivals_code_is_hidden_with_the_run(tmp_path: Path) -> None:
    hidden = sys.modules["hotswap.optimizer.judge.judge"]._hidden(tmp_path / "run" / "tasks" / "norm")
    assert hidden == (str(tmp_path / "run"), str(cache_dir().resolve()))


def test_a_spare_is_used_once_and_made_anew(halls: Callable[[str], Hall]) -> None:
    hall = halls("cpu")
    one, other = hall.worker(), hall.worker()
    one.ready()
    other.ready()
    assert one.pid != other.pid
    one.end()
    other.end()
