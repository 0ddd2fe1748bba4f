"""Decoding through a static cache, each step a replayed graph: it is written where it lies, and tokens are eager's."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from test_cuda_graphs import FakeGraphs

from hotswap.integrator import tails
from hotswap.integrator.cuda_graphs import why_not_nodes
from hotswap.integrator.graph_way import GraphWay
from hotswap.integrator.in_place import InPlace
from hotswap.integrator.results import Tail
from hotswap.integrator.swap_graph import Sites

transformers = pytest.importorskip("transformers")

STEPS = 8


def small_llama() -> Any:
    torch.manual_seed(0)
    fields = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields, **heads)).eval()


def tokens(model: Any, step: Any) -> torch.Tensor:
    """Return greedy tokens after a prompt that eager reads into a new cache."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    prompt = torch.randint(3, 97, (2, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = [model(prompt, use_cache=True, **{name: cache}).logits[:, -1:].argmax(-1)]
        for _ in range(STEPS):
            found.append(step(found[-1], use_cache=True, **{name: cache}).logits[:, -1:].argmax(-1))
    return torch.cat(found, 1)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeGraphs:
    made = FakeGraphs()
    monkeypatch.setattr(tails, "CudaGraphs", lambda _: made)
    monkeypatch.setattr(tails, "why_not", lambda gm, inputs, gradients: why_not_nodes(gm))
    return made


@pytest.mark.parametrize("tail", ["cudagraph", "inductor-cudagraph"])
def test_replayed_steps_give_eagers_tokens_and_a_second_cache_compiles_nothing(tail: Tail, device: FakeGraphs) -> None:
    model = small_llama()
    want = tokens(model, model)
    way = GraphWay(model, (), Sites(), tail)
    for caches in (1, 2):
        assert torch.equal(tokens(model, way), want)
        assert (way.captured["replays"], device.records) == (caches * (STEPS - 1), caches)
    assert way.compiles == 1


def test_generate_over_a_static_cache_runs_the_patched_forward_and_compiles_nothing_around_it() -> None:
    model = small_llama()
    original, calls = model.forward, []

    def patched(*args: Any, **kwargs: Any) -> Any:
        calls.append(torch.compiler.is_compiling())
        return original(*args, **kwargs)

    everywhere = transformers.CompileConfig(backend="eager")
    everywhere._compile_all_devices = True  # what a GPU has by default
    prompt = torch.randint(3, 97, (1, 6), generator=torch.Generator().manual_seed(0))
    asked = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static", "compile_config": everywhere}
    want = model.generate(prompt, **asked | {"disable_compile": True})
    placed = InPlace(model, patched, object(), "Llama")
    placed.put()
    assert torch.equal(model.generate(prompt, **asked), want)
    assert calls == [False] * 4
    assert "get_compiled_call" not in copy.deepcopy(model).__dict__
    placed.take_out()
    assert "get_compiled_call" not in model.__dict__
