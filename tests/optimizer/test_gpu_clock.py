"""The device clock: what it decides without a GPU, and on one that it times the kernel and not the launch."""

from __future__ import annotations

import pytest
import torch

from hotswap.optimizer.device_clock import NotCapturable, capture, cold_sets, interleaved


def test_input_sets_together_are_twice_the_cache_and_two_at_least() -> None:
    assert cold_sets(32 * 2**20, 50 * 2**20) == 4
    assert cold_sets(2**30, 50 * 2**20) == 2
    assert cold_sets(0, 0) == 2


def test_every_arm_has_a_block_in_every_round_and_who_begins_moves_on() -> None:
    order: list[str] = []

    def arm(name: str, us: float) -> object:
        def block(seconds: float) -> float:
            order.append(name)
            assert seconds == 0.5
            return us

        return block

    taken = interleaved([arm("a", 1.0), arm("b", 2.0), arm("c", 3.0)], blocks=3, seconds=0.5)  # type: ignore[list-item]
    assert taken == [[1.0] * 3, [2.0] * 3, [3.0] * 3]
    assert "".join(order) == "abcbcacab"


@pytest.mark.gpu
def test_a_graph_replay_times_a_copy_at_no_more_than_the_memory_can_do_and_no_less_than_half() -> None:
    size = 256 * 2**20
    sets = [[torch.empty(size, dtype=torch.uint8, device="cuda").random_()] for _ in range(2)]
    replay = capture(torch.clone, sets)
    us = min(replay.block(0.05) for _ in range(4))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    target = torch.empty_like(sets[0][0])
    begin.record()
    for _ in range(20):
        target.copy_(sets[0][0])
    end.record()
    end.synchronize()
    alone = begin.elapsed_time(end) * 1e3 / 20
    assert alone * 0.8 < us < alone * 1.5


@pytest.mark.gpu
def test_a_short_kernel_is_timed_without_its_launch() -> None:
    sets = [[torch.rand(1024, device="cuda")] for _ in range(4)]
    us = min(capture(torch.neg, sets).block(0.02) for _ in range(3))
    assert us < 4  # the host needs about 5 us to launch one


@pytest.mark.gpu
def test_outputs_of_the_last_round_are_those_of_each_input_set() -> None:
    sets = [[torch.full((8,), float(n), device="cuda")] for n in range(3)]
    replay = capture(lambda x: x + 1, sets, calls=6)
    assert replay.calls == 6
    sets[1][0].fill_(10.0)
    replay.block(0.001)
    assert [float(out[0]) for out in replay.outputs()] == [1.0, 11.0, 3.0]


@pytest.mark.gpu
def test_a_function_that_synchronises_is_not_capturable_and_the_device_works_on() -> None:
    sets = [[torch.rand(8, device="cuda")] for _ in range(2)]
    with pytest.raises(NotCapturable):
        capture(lambda x: x * float(x.sum().item()), sets)
    assert float((torch.ones(2, device="cuda") + 1).sum()) == 4.0
    assert capture(torch.neg, sets).block(0.001) > 0
