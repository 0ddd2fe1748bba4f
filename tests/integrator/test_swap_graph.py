from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from hotswap.integrator.swap_graph import GraphSwap, Sites, SwapPlan
from hotswap.optimizer.winner import Winner

MakeWinners = Callable[..., list[Winner]]


def swapped(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], winners: Sequence[Winner]
) -> tuple[GraphSwap, fx.GraphModule, Sites, Any]:
    """Swap in the one graph of a call and run it."""
    sites, done = Sites(), []

    def backend(gm: fx.GraphModule, _: object) -> Callable[..., Any]:
        done.append((SwapPlan(gm, {w.fingerprint: w for w in winners}, sites).apply(), gm))
        return gm.forward

    with torch.no_grad():
        result = torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    ((swap, gm),) = done
    return swap, gm, sites, result


def check(make_winners: MakeWinners, function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[GraphSwap, Sites]:
    copies = [t.clone() for t in inputs]
    winners = make_winners(function, *[t.clone() for t in inputs])
    swap, _, sites, got = swapped(function, [t.clone() for t in inputs], winners)
    torch.testing.assert_close(got, function(*copies), rtol=0, atol=0)
    return swap, sites


def test_a_region_with_several_outputs_becomes_one_call(make_winners: MakeWinners) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x + y
        return h, torch.tanh(h) * 2

    swap, sites = check(make_winners, function, torch.randn(4, 8), torch.randn(4, 8))
    assert len(swap.swapped) == 1
    assert [s.calls for s in sites] == [1]


def test_regions_that_feed_each_other_are_all_swapped(make_winners: MakeWinners) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x + 1) * 2
        g = torch.relu(h @ w) + h
        return (g @ w).sin() * h

    swap, sites = check(make_winners, function, torch.randn(4, 4), torch.randn(4, 4))
    assert len(swap.swapped) == 3
    assert sum(s.calls for s in sites) == 3


def test_what_uses_an_early_output_moves_behind_the_call(make_winners: MakeWinners) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        early = torch.tanh(x + 1)
        product = early @ w  # stands between the ops of the region, and needs its first output
        late = torch.sin(early) * 3
        return product, late

    swap, sites = check(make_winners, function, torch.randn(4, 4), torch.randn(4, 4))
    assert len(swap.swapped) == 1
    assert [s.calls for s in sites] == [1]


def test_a_region_with_a_write_between_its_ops_keeps_them(make_winners: MakeWinners) -> None:
    def function(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        before = buffer * 2
        buffer.add_(x)
        after = buffer + 1
        return before * after

    swap, _ = check(make_winners, function, torch.randn(4, 8), torch.randn(4, 8))
    assert not [s for s in swap.swapped if "mul-add" in s.task]
    assert any("stands between its ops" in left.reason for left in swap.left)


def test_a_region_with_a_draw_between_its_ops_keeps_them(make_winners: MakeWinners) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        early = torch.tanh(x)
        noise = torch.rand_like(early)
        return torch.sin(early) + noise.cos() * early

    winners = make_winners(function, torch.randn(4, 8))
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    state = torch.get_rng_state()
    want = function(x)
    torch.set_rng_state(state)
    _, _, _, got = swapped(function, [x], winners)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_what_was_left_alone_or_lost_stays_in_the_graph(make_winners: MakeWinners) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + 1) * 2

    x = torch.randn(4, 8)
    (winner,) = make_winners(function, x)
    for choice, lines in (("leave", 0), ("inductor", 1)):
        other = dataclasses.replace(winner, choice=choice, source=None)  # type: ignore[arg-type]
        swap, gm, _, _ = swapped(function, [x], [other])
        torch._dynamo.reset()
        assert not swap.swapped
        assert len(swap.left) == lines
        assert not any(
            isinstance(n.target, torch._ops.OpOverload) and "hotswap" in str(n.target) for n in gm.graph.nodes
        )


def test_a_kernel_that_does_not_load_is_a_reason_and_not_a_crash(make_winners: MakeWinners) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + 1) * 2

    x = torch.randn(4, 8)
    (winner,) = make_winners(function, x)
    broken = dataclasses.replace(winner, source="import nothing_of_that_name\n")
    swap, _, _, got = swapped(function, [x], [broken])
    torch.testing.assert_close(got, function(x), rtol=0, atol=0)
    assert [left.reason for left in swap.left] == [
        f"kernel {winner.task}: its source does not load (ModuleNotFoundError: No module named 'nothing_of_that_name')"
    ]


def test_equal_places_are_counted_by_place_and_share_a_site(make_winners: MakeWinners) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(x @ w) * x
        return x

    swap, sites = check(make_winners, function, torch.randn(4, 4), torch.randn(4, 4))
    (site,) = sites
    assert len({s.place for s in swap.swapped}) == 3
    assert site.engagement().sites == 3
    assert site.engagement().kernel_calls == 3
