"""Planned memory: the same values as eager, in memory that is laid out once, with nothing planned ever handed out."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn

from hotswap.integrator.graph_way import GraphWay
from hotswap.integrator.layouts import FIRST_MEETING, MOST_KEPT
from hotswap.integrator.memory_plan import Arena, MemoryPlan, _Buffer, _place, plan_memory
from hotswap.integrator.planned_runs import PlannedRuns, why_not_planned
from hotswap.integrator.swap_graph import Sites
from hotswap.optimizer.winner import Winner


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(32, 64), nn.Linear(64, 32), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(3):
            x = self.norm(x + self.down(F.gelu(self.up(x))))
        return x, torch.tanh(x[:, 0])


@pytest.fixture
def block() -> Block:
    torch.manual_seed(0)
    return Block().eval()


def graph(run: Callable[..., Any]) -> fx.GraphModule:
    return fx.symbolic_trace(run)


def planned(run: Callable[..., Any], *inputs: torch.Tensor, arena: Arena | None = None) -> MemoryPlan:
    return plan_memory(graph(run), inputs, arena or Arena())


def same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_every_call_gives_eagers_bits(block: Block) -> None:
    plan = planned(block, torch.randn(2, 4, 32))
    for _ in range(3):
        x = torch.randn(2, 4, 32)
        same(plan.run(x), block(x))


def test_what_a_caller_holds_is_not_written_by_later_calls(block: Block) -> None:
    plan = planned(block, torch.randn(2, 4, 32))
    x = torch.randn(2, 4, 32)
    held, expected = plan.run(x), block(x)
    plan.run(torch.randn(2, 4, 32))
    same(held, expected)


def test_a_view_of_an_intermediate_that_is_handed_out_is_not_planned() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() + 1).t()[1:]

    plan = planned(run, torch.rand(4, 4))
    x = torch.rand(4, 4)
    held, expected = plan.run(x), run(x)
    plan.run(torch.rand(4, 4))
    same(held, expected)
    assert (plan.planned, plan.ops) == (1, 2)


def test_intermediates_that_are_not_alive_together_share_memory() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = torch.tanh(x)
        return x

    plan = planned(run, torch.rand(1024))
    assert (plan.planned, plan.ops) == (9, 10)
    assert plan.bytes == 2 * 4096


def test_planned_results_lie_in_the_arena_at_every_call() -> None:
    arena = Arena()
    plan = planned(lambda x: torch.tanh(x.exp()), torch.rand(1024), arena=arena)
    begin = arena.storage.data_ptr()
    fixed = [t for name, t in vars(plan.run).items() if name.startswith("_planned")]
    assert [t.data_ptr() for t in fixed] == [begin]
    assert any("exp.out" in str(n.target) for n in plan.run.graph.nodes)


def test_buffers_alive_at_the_same_time_never_overlap() -> None:
    draw = random.Random(0)
    for _ in range(200):
        buffers = []
        for _ in range(draw.randint(1, 30)):
            first = draw.randint(0, 40)
            buffers.append(_Buffer(draw.randint(1, 500), first, first + draw.randint(0, 15)))
        size = _place(buffers)
        for i, one in enumerate(buffers):
            assert one.offset % 64 == 0
            assert one.offset + one.bytes <= size
            for other in buffers[:i]:
                if one.meets(other):
                    assert one.offset + one.bytes <= other.offset or other.offset + other.bytes <= one.offset


def test_a_write_into_an_intermediate_keeps_its_order() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        z = y.sin()
        y.add_(1)
        y[:, 0].mul_(2)
        return z + y.cos()

    plan = planned(run, torch.rand(4, 4))
    for _ in range(2):
        x = torch.rand(4, 4)
        same(plan.run(x), run(x))
    assert plan.planned >= 3


def test_a_write_into_an_input_reaches_the_callers_tensor() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.exp().sin()

    plan = planned(run, torch.rand(4))
    x = torch.zeros(4)
    same(plan.run(x), torch.ones(4).exp().sin())
    same(x, torch.ones(4))


def test_results_that_come_as_several_tensors_are_planned() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        values, places = torch.sort(x.exp(), dim=-1)
        return values.sin() + places

    plan = planned(run, torch.rand(4, 9))
    x = torch.rand(4, 9)
    same(plan.run(x), run(x))
    assert any("sort.values" in str(n.target) for n in plan.run.graph.nodes)


def test_casts_and_copies_write_into_planned_memory() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        wide = x.transpose(0, 1).contiguous().double()
        return (wide * wide).to(torch.float32)

    plan = planned(run, torch.rand(5, 7))
    x = torch.rand(5, 7)
    same(plan.run(x), run(x))
    assert plan.planned == 3


def test_sizes_strides_and_offsets_of_views_are_kept() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        a, b = y.chunk(2, dim=-1)
        return a.unsqueeze(0).expand(3, -1, -1) * b[1:2] + y[:, 1::2].sum(-1, keepdim=True)

    plan = planned(run, torch.rand(4, 8))
    x = torch.rand(4, 8)
    same(plan.run(x), run(x))


def test_a_larger_plan_in_the_same_arena_leaves_a_smaller_one_right(block: Block) -> None:
    arena = Arena()
    small = planned(block, torch.randn(1, 2, 32), arena=arena)
    large = planned(block, torch.randn(64, 64, 32), arena=arena)
    for _ in range(2):
        for plan, sizes in ((small, (1, 2, 32)), (large, (64, 64, 32))):
            x = torch.randn(sizes)
            same(plan.run(x), block(x))


def runs_of(model: Callable[..., Any]) -> PlannedRuns:
    return PlannedRuns(graph(model), Arena())


def test_a_layout_is_planned_when_it_comes_again(block: Block) -> None:
    runs = runs_of(block)
    for number in range(3):
        x = torch.randn(2, 4, 32)
        same(runs(x), block(x))
        assert runs.captures == min(number, 1)
    assert (runs.replays, dict(runs.fallbacks)) == (2, {FIRST_MEETING: 1})


def test_many_lengths_keep_few_plans_and_stay_right(block: Block) -> None:
    runs = runs_of(block)
    for length in range(1, MOST_KEPT + 4):
        for _ in range(3):
            x = torch.randn(2, length, 32)
            same(runs(x), block(x))
    assert len(runs._plans) == MOST_KEPT


def test_a_call_that_meets_another_at_work_runs_as_it_is(block: Block) -> None:
    runs = runs_of(block)
    x = torch.randn(2, 4, 32)
    for _ in range(2):
        runs(x)
    with runs._arena.lock:
        same(runs(x), block(x))
    assert runs.fallbacks["another call is at work in the planned memory"] == 1


def test_threads_that_call_at_once_all_get_their_own_answer(block: Block) -> None:
    runs = runs_of(block)
    wrong: list[int] = []

    def work(number: int) -> None:
        torch.manual_seed(number)
        with torch.no_grad():
            for _ in range(20):
                x = torch.randn(2, 4, 32)
                if not all(torch.equal(a, b) for a, b in zip(runs(x), block(x), strict=True)):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_graph_whose_sizes_depend_on_values_runs_as_it_is_and_says_why() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x).sum(0)

    runs = runs_of(run)
    for _ in range(3):
        x = torch.tensor([0.0, 1.0, 2.0])
        same(runs(x), run(x))
    assert runs.replays == 0
    assert any(reason.startswith("no memory plan: ") for reason in runs.fallbacks)


def test_where_gradients_are_wanted_nothing_is_planned() -> None:
    assert why_not_planned([torch.rand(2)], gradients=True) == "the graph is differentiated"
    assert why_not_planned([torch.rand(2)], gradients=False) is None


def test_a_model_with_kernels_runs_them_in_its_plans(block: Block, make_winners: Callable[..., list[Winner]]) -> None:
    x = torch.randn(2, 4, 32)
    sites = Sites()
    way = GraphWay(block, make_winners(block.forward, x), sites, "planned")
    for number in range(1, 4):
        x = torch.randn(2, 4, 32)
        same(way(x), block(x))
        assert all(site.calls == number * len(site.places) for site in sites)
    assert way.captured["replays"] == 2


def test_a_patched_model_trains_as_in_eager(block: Block, make_winners: Callable[..., list[Winner]]) -> None:
    x = torch.randn(2, 4, 32)
    way = GraphWay(block, make_winners(block.forward, x), Sites(), "planned")
    for _ in range(3):
        way(x)
    with torch.enable_grad():
        way(x)[0].sum().backward()
        ours = [p.grad.clone() for p in block.parameters() if p.grad is not None]
        block.zero_grad()
        block(x)[0].sum().backward()
    same(ours, [p.grad for p in block.parameters()])
