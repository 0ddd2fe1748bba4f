"""CUDA graphs without a GPU: what is captured, when, and that no later call overwrites what an earlier one returned."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn

from hotswap.extractor.node_ops import is_weight
from hotswap.integrator.cuda_graphs import GraphReplays, may_be_thrown_away, why_not, why_not_nodes
from hotswap.integrator.fresh_outputs import split
from hotswap.integrator.layouts import MOST_KEPT


class FakeGraphs:
    """A GraphDevice that replays by running again and writing into the tensors of the first run."""

    lock = contextlib.nullcontext()

    def __init__(self) -> None:
        self.records = 0
        self.fails: Exception | None = None
        self.is_busy = False
        self.order: list[str] = []

    def busy(self) -> bool:
        return self.is_busy

    def record(self, run: Callable[[], tuple[Any, ...]], recording: Callable[[], object]) -> Any:
        run()
        recording()
        if self.fails is not None:
            raise self.fails
        self.records += 1
        results = run()

        def replay() -> None:
            for old, new in zip(results, run(), strict=True):
                old.copy_(new)

        for result in results:
            result.fill_(7.0)  # what a capture leaves in its results is nothing anybody may read
        return replay, results

    def enter(self) -> None:
        self.order.append("enter")

    def leave(self) -> None:
        self.order.append("leave")


class Head(nn.Module):
    """Ends as a language model does: a norm, then a head whose result is larger than what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.head = nn.Linear(8, 64, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.up(x))
        return self.head(hidden), hidden


def captured(run: Callable[..., Any], *args: Any, dynamic: bool = False) -> tuple[fx.GraphModule, list[Any]]:
    """Return the graph that Dynamo makes of `run`, and its real inputs."""
    graphs: list[tuple[fx.GraphModule, list[Any]]] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append((gm, list(inputs)))
        return gm.forward

    with torch.no_grad():
        torch.compile(run, backend=backend, dynamic=dynamic)(*args)
    return graphs[0]


class Replayed:
    """A module's graph with fake CUDA graphs around it, called with the module's own arguments."""

    def __init__(self, model: nn.Module, *args: torch.Tensor) -> None:
        gm, inputs = captured(model, *args)
        self.device = FakeGraphs()
        nodes = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.weights = [i for i, n in enumerate(nodes) if is_weight(n)]
        self.inputs = inputs
        parts = split(gm)
        # Dynamo numbers its inputs as it meets them.
        self.given = [next(i for i, v in enumerate(inputs) if v is arg) for arg in args]
        self.runs = GraphReplays(parts, parts.inner.forward, gm.forward, self.weights, self.device)
        self.parts = parts

    def __call__(self, *given: torch.Tensor) -> Any:
        inputs = list(self.inputs)
        for place, value in zip(self.given, given, strict=True):
            inputs[place] = value
        with torch.no_grad():
            return self.runs(*inputs)


class Cached(nn.Module):
    """Writes a row into each of two caches where a third tensor says, which moves on, and reads them."""

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, place: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys.index_copy_(0, place, x)
        values.index_copy_(0, place, x * 2)
        place.add_(1)
        return torch.tanh(keys @ values.t()), place.float().exp()


def caches() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.zeros(6, 4), torch.zeros(1, dtype=torch.long), torch.zeros(6, 4)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 8)


@pytest.fixture
def model() -> Head:
    torch.manual_seed(0)
    return Head()


def same(got: Any, want: Any) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def settled(model: nn.Module, x: torch.Tensor) -> Replayed:
    made = Replayed(model, x)
    for _ in range(3):
        made(x)
    return made


def test_a_layout_is_captured_when_it_comes_again(model: Head, x: torch.Tensor) -> None:
    made = Replayed(model, x)
    same(made(x), model(x))
    assert made.device.records == 0
    same(made(x), model(x))
    same(made(x), model(x))
    assert (made.device.records, made.runs.replays) == (1, 2)
    assert made.runs.fallbacks == {"a layout met for the first time": 1}


def test_other_values_of_the_same_layout_are_read(model: Head, x: torch.Tensor) -> None:
    made = settled(model, x)
    other = torch.randn(3, 8)
    same(made(other), model(other))
    assert made.device.records == 1


def test_a_later_call_overwrites_nothing_that_was_returned(model: Head, x: torch.Tensor) -> None:
    made = settled(model, x)
    first = made(x)
    made(torch.randn(3, 8))
    same(first, model(x))


def test_the_head_is_not_copied_but_run_outside(model: Head, x: torch.Tensor) -> None:
    made = Replayed(model, x)
    outside = [n for n in made.parts.outer.graph.nodes if n.op == "call_function"]
    assert [n.target for n in outside] == [F.linear]
    # The hidden states are returned, too, and so they are copied; the head reads the same ones.
    assert made.parts.copied == (True,)


def test_what_only_the_head_reads_is_not_copied(x: torch.Tensor) -> None:
    class Only(Head):
        def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return super().forward(x)[0]

    made = Replayed(Only(), x)
    assert made.parts.copied == (False,)


def test_outputs_that_share_memory_still_do(x: torch.Tensor) -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = torch.exp(x)
            return y, y[0]

    made = settled(Views(), x)
    whole, part = made(x)
    assert part.data_ptr() == whole.data_ptr()
    assert made.runs.replays


def test_an_input_that_is_returned_is_the_callers_own(x: torch.Tensor) -> None:
    class Returns(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.exp(x), x.view(-1)

    made = settled(Returns(), x)
    assert made(x)[1].data_ptr() == x.data_ptr()


def test_a_weight_written_in_place_is_read_anew(model: Head, x: torch.Tensor) -> None:
    made = settled(model, x)
    with torch.no_grad():
        model.up.weight.mul_(2.0)
    same(made(x), model(x))
    assert made.device.records == 1


def test_a_weight_whose_memory_was_exchanged_is_captured_again(model: Head, x: torch.Tensor) -> None:
    made = settled(model, x)
    model.up.weight.data = torch.randn(8, 8)
    same(made(x), model(x))
    assert made.device.records == 2


def test_weights_that_move_at_each_call_are_not_chased_for_ever(model: Head, x: torch.Tensor) -> None:
    made = settled(model, x)
    for _ in range(10):
        model.up.weight.data = model.up.weight.data.clone()
        same(made(x), model(x))
    assert made.device.records < 6
    assert made.runs.fallbacks["its weights keep moving"] > 3


def test_a_failed_capture_is_counted_and_not_tried_again(model: Head, x: torch.Tensor) -> None:
    made = Replayed(model, x)
    made.device.fails = RuntimeError("operation not permitted when stream is capturing\nmore")
    for _ in range(4):
        same(made(x), model(x))
    reason = "capture failed: RuntimeError: operation not permitted when stream is capturing"
    assert made.runs.fallbacks == {"a layout met for the first time": 1, reason: 3}


def test_lengths_that_never_come_again_are_never_captured(model: Head) -> None:
    made = Replayed(model, torch.randn(3, 8))
    for length in range(1, 120):
        made(torch.randn(length, 8))
    assert made.device.records == 0
    assert len(made.runs._captured._met) < 119


def test_only_the_last_used_layouts_are_kept(model: Head) -> None:
    made = Replayed(model, torch.randn(3, 8))
    for length in range(1, MOST_KEPT + 4):
        given = torch.randn(length, 8)
        for _ in range(3):
            same(made(given), model(given))
    assert len(made.runs._captured) == MOST_KEPT


def test_inside_another_capture_nothing_is_replayed(model: Head, x: torch.Tensor) -> None:
    made = settled(model, x)
    made.device.is_busy = True
    before = made.runs.replays
    same(made(x), model(x))
    assert made.runs.replays == before


def test_each_replay_is_ordered_among_streams(model: Head, x: torch.Tensor) -> None:
    made = settled(model, x)
    assert made.device.order == ["enter", "leave"] * made.runs.replays


def test_an_expanded_input_is_not_captured(model: Head) -> None:
    made = Replayed(model, torch.randn(3, 8))
    for _ in range(3):
        made(torch.randn(1, 8).expand(3, 8))
    assert made.runs.fallbacks["an input whose elements share memory"] == 2


def test_a_graph_that_draws_random_numbers_is_refused() -> None:
    gm, _ = captured(lambda x: F.dropout(x, 0.5, True), torch.randn(4))
    assert "draws random numbers" in (why_not_nodes(gm) or "")


def test_a_graph_that_gives_back_the_input_it_writes_into_is_refused() -> None:
    gm, _ = captured(lambda x: x.add_(1), torch.randn(4))
    assert "is given back, and writes into an input" in (why_not_nodes(gm) or "")


def test_a_cache_that_grows_is_refused() -> None:
    gm, _ = captured(lambda cache, x: torch.cat([cache, x.exp()], -2), torch.randn(1, 4, 8), torch.randn(1, 1, 8))
    assert "a cache that grows" in (why_not_nodes(gm) or "")


def test_a_cache_is_written_where_it_lies_once_a_call() -> None:
    model = Cached()
    mine, theirs = caches(), caches()
    made = Replayed(model, torch.randn(1, 4), *caches())
    for _ in range(5):
        row = torch.randn(1, 4)
        same(made(row, *mine), model(row, *theirs))
        same(mine, theirs)
    assert (made.device.records, made.runs.replays) == (1, 4)


def test_another_cache_has_a_graph_of_its_own() -> None:
    model = Cached()
    mine, theirs = [caches(), caches()], [caches(), caches()]
    made = Replayed(model, torch.randn(1, 4), *caches())
    for turn in (0, 0, 1, 1, 0, 1, 0):
        row = torch.randn(1, 4)
        same(made(row, *mine[turn]), model(row, *theirs[turn]))
    same((*mine[0], *mine[1]), (*theirs[0], *theirs[1]))
    assert made.device.records == 2


def test_a_failed_capture_leaves_the_cache_as_it_was() -> None:
    model = Cached()
    mine, theirs = caches(), caches()
    made = Replayed(model, torch.randn(1, 4), *caches())
    made.device.fails = RuntimeError("not now")
    for _ in range(3):
        row = torch.randn(1, 4)
        same(made(row, *mine), model(row, *theirs))
        same(mine, theirs)


def test_a_replay_counts_as_a_write_for_autograd() -> None:
    made = Replayed(Cached(), torch.randn(1, 4), *caches())
    mine = caches()
    for _ in range(3):
        made(torch.randn(1, 4), *mine)
    before = mine[0]._version
    made(torch.randn(1, 4), *mine)
    assert mine[0]._version > before


def test_an_input_that_lies_in_a_written_cache_is_not_captured() -> None:
    model = Cached()
    mine, theirs = caches(), caches()
    made = Replayed(model, torch.randn(1, 4), *caches())
    for _ in range(4):
        same(made(mine[2][:1], *mine), model(theirs[2][:1], *theirs))
    assert made.runs.fallbacks == {"an input shares memory with one that is written into": 4}


def test_a_head_that_reads_what_is_written_later_stays_inside() -> None:
    class Later(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = torch.exp(x)
            wide = hidden @ torch.ones(8, 64)
            hidden.zero_()
            return wide

    given = torch.randn(3, 8)
    made = settled(Later(), given)
    same(made(given), (Later()(given),))
    assert made.runs.replays


def test_a_run_that_writes_or_draws_may_not_be_thrown_away() -> None:
    assert may_be_thrown_away(captured(lambda x: torch.relu_(x * 2), torch.randn(4))[0])
    assert not may_be_thrown_away(captured(lambda x: x.mul_(2) + 1, torch.randn(4))[0])
    assert not may_be_thrown_away(captured(lambda x: x * torch.rand(4), torch.randn(4))[0])


def test_training_and_the_cpu_are_refused(model: Head, x: torch.Tensor) -> None:
    gm, inputs = captured(model, x)
    assert why_not_nodes(gm) is None
    assert why_not(gm, inputs, gradients=True) == "the graph is differentiated"
    assert why_not(gm, inputs, gradients=False) == "inputs on cpu, expected one CUDA device"


@pytest.mark.gpu
def test_on_a_gpu_a_model_gives_the_same_again_and_again() -> None:
    from hotswap.integrator.graph_way import GraphWay
    from hotswap.integrator.swap_graph import Sites

    torch.manual_seed(0)
    model = Head().cuda().bfloat16()
    way = GraphWay(model, (), Sites(), "cudagraph")
    with torch.no_grad():
        kept = []
        for _ in range(5):
            given = torch.randn(3, 8, device="cuda", dtype=torch.bfloat16)
            kept.append((way(given), model(given)))
        for got, want in kept:
            for one, other in zip(got, want, strict=True):
                torch.testing.assert_close(one, other)
        assert way.captured["replays"] == 4
        model.up.weight.data = model.up.weight.data * 2
        given = torch.randn(3, 8, device="cuda", dtype=torch.bfloat16)
        for one, other in zip(way(given), model(given), strict=True):
            torch.testing.assert_close(one, other)
        other_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        other_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other_stream):
            for one, other in zip(way(given), model(given), strict=True):
                torch.testing.assert_close(one, other)
        torch.cuda.synchronize()


@pytest.mark.gpu
def test_on_a_gpu_what_cannot_be_captured_runs_without() -> None:
    from hotswap.integrator.graph_way import GraphWay
    from hotswap.integrator.swap_graph import Sites

    class Syncs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.tensor([1.0, 2.0], device="cpu").to(x.device)

    way = GraphWay(Syncs(), (), Sites(), "cudagraph")
    way.use(frozenset({"rewrite:fold-shapes"}))
    x = torch.randn(2, 2, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(way(x), Syncs()(x))
    assert any(reason.startswith("capture failed") for reason in way.captured), way.captured


@pytest.mark.gpu
def test_on_a_gpu_a_graph_keeps_the_memory_that_matmuls_work_in_whoever_clears_theirs() -> None:
    from hotswap.integrator.graph_way import GraphWay
    from hotswap.integrator.swap_graph import Sites

    torch.manual_seed(0)
    # Few rows and a long sum: cuBLAS splits it, and its workspace holds the parts.
    model = nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(2))).cuda().bfloat16()
    way = GraphWay(model, (), Sites(), "cudagraph")
    given = torch.randn(64, 8192, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        want = model(given)
        for _ in range(3):
            way(given)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        taken = [torch.zeros(8 << 20, device="cuda") for _ in range(16)]
        torch.testing.assert_close(way(given), want)
        assert not any(bool(one.any()) for one in taken), "a replay wrote into memory of others"
        assert way.captured["replays"] == 3


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_on_a_gpu_no_padded_call_waits_for_its_mask_and_every_mask_is_what_it_is() -> None:
    from transformers import BertConfig, BertModel

    from hotswap.integrator.graph_way import GraphWay
    from hotswap.integrator.swap_graph import Sites

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=99, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2
    )
    model: Any = BertModel(config)
    model.eval().cuda()
    way = GraphWay(model, (), Sites(), "cudagraph")
    ids = torch.randint(1, 99, (2, 32), device="cuda")
    ones = torch.ones_like(ids)
    right, left = ones.clone(), ones.clone()
    right[1, 20:] = 0
    left[1, :20] = 0

    def right_with(mask: torch.Tensor) -> None:
        want = model(ids, attention_mask=mask)[0]
        got = way(ids, attention_mask=mask)[0]
        torch.testing.assert_close(got * mask[..., None], want * mask[..., None], rtol=1e-3, atol=1e-3)

    with torch.no_grad():
        for mask in (right, left, left, *[ones.clone() for _ in range(5)], right, left, ones, right.clone()):
            right_with(mask)
        fresh = [left.clone() for _ in range(4)]
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for mask in (*fresh, left, left):
                way(ids, attention_mask=mask)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        graph, static = torch.cuda.CUDAGraph(), ones.clone()
        way(ids, attention_mask=static)
        with torch.cuda.graph(graph):
            held = way(ids, attention_mask=static)[0]
        static.copy_(right)
        graph.replay()
        want = model(ids, attention_mask=right)[0]
        torch.testing.assert_close(held * right[..., None], want * right[..., None], rtol=1e-3, atol=1e-3)
