"""What is made of the blocks of a race, on blocks whose truth is known."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_cheats import HONEST  # type: ignore[import-not-found]

from hotswap.optimizer.judge import Judge, arena
from hotswap.optimizer.judge.bank import Bank
from hotswap.optimizer.judge.hall import Hall
from hotswap.optimizer.judge.judge import refuse_impossible
from hotswap.optimizer.judge.lane import Lane, drawn
from hotswap.optimizer.judge.pool import make_pool
from hotswap.optimizer.judge.race import TIMER, weighted_speedup
from hotswap.optimizer.judge.trial import Rejected
from hotswap.optimizer.verdict import Arm, Race
from hotswap.profiler.recording import Limits

Blocks = list[float]


def race(weight: float, **arms: Blocks) -> Race:
    sides = tuple(Arm(name, tuple(blocks), sorted(blocks)[len(blocks) // 2]) for name, blocks in arms.items())
    return Race("case", weight, sides, {}, TIMER, "cold", 0.2, 0.5)


def test_shapes_count_by_their_weights_and_the_best_rival_is_the_one_to_beat() -> None:
    often = race(3.0, candidate=[10.0] * 8, eager=[20.0] * 8, inductor=[30.0] * 8)
    seldom = race(1.0, candidate=[90.0] * 8, eager=[60.0] * 8, inductor=[50.0] * 8)
    rival, speedup = weighted_speedup([often, seldom], "candidate")
    assert rival == "eager"
    assert speedup.median == pytest.approx((3 * 20 + 60) / (3 * 10 + 90))


def test_equal_sides_read_one_and_exchanged_sides_the_reciprocal() -> None:
    one, other = [10.0, 11.0, 10.5, 10.2, 12.0, 10.1, 10.3, 10.4], [8.0, 8.5, 8.2, 9.0, 8.1, 8.3, 8.8, 8.4]
    _, equal = weighted_speedup([race(1.0, candidate=one, eager=one)], "candidate")
    assert (equal.median, equal.low, equal.high) == (1.0, 1.0, 1.0)
    _, there = weighted_speedup([race(1.0, candidate=one, eager=other)], "candidate")
    _, back = weighted_speedup([race(1.0, candidate=other, eager=one)], "candidate")
    assert (back.median, back.low, back.high) == pytest.approx((1 / there.median, 1 / there.high, 1 / there.low))


def test_a_figure_above_the_machine_is_rejected_with_the_arithmetic() -> None:
    limits = Limits("cpu", 20.0, {}, 1.0, 1 << 20, "")
    possible = race(1.0, candidate=[100.0] * 8, eager=[200.0] * 8)
    refuse_impossible([possible], [2_000_000], limits)
    noisy = race(1.0, candidate=[0.001] * 5 + [100.0] * 3, eager=[200.0] * 8)
    refuse_impossible([noisy], [2_000_000], limits)
    impossible = race(1.0, candidate=[10.0] * 8, eager=[200.0] * 8)
    with pytest.raises(Rejected, match=r"10\.00 us a call would move 2000000 bytes at 200 GB/s; .* at most at 20"):
        refuse_impossible([impossible], [2_000_000], limits)


def test_the_command_line_accepts_rejects_and_speaks_json(make_task: Callable[..., Path], tmp_path: Path) -> None:
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(11))
    folder = make_task("def reference(x):\n    return (x.exp(),)\n", {"x": x})
    (tmp_path / "bad.py").write_text("def kernel(x): return x.exp() + 1\n")
    main = "import sys; from hotswap.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", main, "task", "try", str(folder), str(tmp_path / "bad.py"), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 1, ran.stderr
    assert '"accepted": false' in ran.stdout
    assert "wrong at 64 of 64 values" in ran.stdout


def test_nothing_is_left_running_after_a_judge(make_task: Callable[..., Path]) -> None:
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(11))
    folder = make_task("def reference(x):\n    return (x.exp(),)\n", {"x": x})
    before = _below_me()
    with Judge(folder, block_s=0.002, rounds=2, pool_bytes=1 << 18, threads=1, inductor=False) as court:
        verdict = court.verdict("def kernel(x): return x.exp()")
        assert verdict.accepted, verdict.reason
        assert _below_me() - before
    deadline = time.monotonic() + 5.0
    while _below_me() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _below_me() - before == set()


def test_timed_contents_of_one_source_are_no_multiples_of_each_other() -> None:
    source = torch.randn(64, 32, generator=torch.Generator().manual_seed(11))
    one, other = torch.empty_like(source), torch.empty_like(source)
    for room, by in ((one, 0.8125), (other, 1.3)):
        arena.refill(arena.storage_bytes(room), arena.storage_bytes(source), "float32", by)
    assert not torch.allclose(one / 0.8125, other / 1.3)
    for room, by in ((one, 0.8125), (other, 1.3)):
        torch.testing.assert_close(room.flatten().sort().values, (source * by).flatten().sort().values)


def rows_by_torch(
    rooms: torch.Tensor, sources: torch.Tensor, which: list[int], first: list[int], by: list[float] | None, aligned: int
) -> None:
    """Do what the kernel that fills the sets of a device does (test_fill holds that to it), where there is none."""
    for number, room in enumerate(rooms):
        assert first[number] % aligned == 0
        row = torch.roll(sources[which[number]], -first[number])
        room.copy_(row if by is None else row * by[number])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("width", [40, 800])
def test_sets_filled_together_as_on_a_device_are_bit_for_bit_those_filled_one_by_one(
    make_task: Callable[..., Path], halls: Callable[[str], Hall], dtype: torch.dtype, width: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    stand_in = SimpleNamespace(fill_rows=rows_by_torch)
    monkeypatch.setitem(sys.modules, "hotswap.optimizer.judge.fill_kernel", stand_in)
    x = (8 * torch.randn(6, width, generator=torch.Generator().manual_seed(11))).to(dtype)
    bank = Bank(make_task("def reference(x):\n    return (x * x,)\n", {"x": x}), 5)
    pool = make_pool(bank, bank.recorded[0], 1.0, 1 << 18)
    source, worker = random.Random(3), halls("cpu").trusted({})
    lane = Lane("eager", worker, None, 5.0)
    try:
        lane.enter(pool)
        assert lane.room is not None
        lane.contents = [drawn(pool, source) for _ in range(pool.sets)]
        lane.fill(pool, range(pool.sets))
        one_by_one = lane.room.bytes_at(0, lane.room.nbytes).clone()
        lane.room.bytes_at(0, lane.room.nbytes).fill_(0)
        lane.fill_together(pool, [pool.raw(n) for n in range(len(pool.sources))])
        assert torch.equal(lane.room.bytes_at(0, lane.room.nbytes), one_by_one)
    finally:
        lane.leave()
        halls("cpu").give_back(worker)


def test_a_kernel_is_raced_again_in_a_clean_process_and_not_where_it_is_wrong_now(judge32: Judge) -> None:
    (again,) = judge32.race(HONEST + "def kernel(x, weight): return right(x, weight)")
    assert {arm.name for arm in again.arms} == {"candidate", "eager"}
    with pytest.raises(Rejected, match="wrong at"):
        judge32.race("def kernel(x, weight): return x.clone()")


def test_judges_share_a_hall_and_leave_it_open(make_task: Callable[..., Path], quick: Callable[[Path], Judge]) -> None:
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(11))
    folder = make_task("def reference(x):\n    return (x.exp(),)\n", {"x": x})
    source = "def kernel(x): return x.exp()"
    with quick(folder) as one:
        assert one.verdict(source).accepted
        hall, at_work = one.hall, _parents_of_workers()
    with quick(folder) as other:
        assert other.hall is hall
        assert other.verdict(source).accepted
        assert _parents_of_workers() == at_work


def test_a_judge_refuses_another_number_of_threads_than_its_halls(
    make_task: Callable[..., Path], halls: Callable[[str], Hall]
) -> None:
    folder = make_task("def reference(x):\n    return (x.exp(),)\n", {"x": torch.ones(2)})
    with pytest.raises(ValueError, match="threads=7, but the given hall's workers have 1"):
        Judge(folder, threads=7, hall=halls("cpu"))


def _parents_of_workers() -> set[int]:
    """Return this process's own children that serve as a hall."""
    children = {int(p) for p in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    return {p for p in children if b"judge.worker" in Path(f"/proc/{p}/cmdline").read_bytes()}


def _below_me() -> set[int]:
    """Return the processes whose ancestor this one is."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found: set[int] = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more
