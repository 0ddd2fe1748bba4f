"""Attention that a model writes out: read from the graph, proven by running it, and called as one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from rewritten_models import Rewritten, graph_of
from torch import fx

from hotswap.integrator.rewrites import written_attention
from hotswap.integrator.rewrites.rewrite import Notes, Setting
from hotswap.integrator.rewrites.written_attention import Where, as_calls, attention_with_sinks

LENGTH = 12
HERE = torch.finfo(torch.float32).min


def hidden(left: int) -> torch.Tensor:
    """Return what is added to scores so that a query sees itself and `left` keys before it."""
    at = torch.arange(LENGTH)
    far = at[None] - at[:, None]
    return torch.zeros(LENGTH, LENGTH).masked_fill((far > 0) | (far < -left), HERE)[None, None]


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.3 + hidden(LENGTH)
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(weights, p=0.1, training=False), v)


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    at = torch.arange(LENGTH).float()
    return (q @ k.transpose(-1, -2) / math.sqrt(8) + (at[None] - at[:, None])[None, None] * 0.1).softmax(-1) @ v


def bare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1), dim=-1) @ v


def with_sinks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, left: int = 3) -> torch.Tensor:
    rows, few, length, width = k.shape
    k, v = (t[:, :, None].expand(rows, few, 2, length, width).reshape(rows, 2 * few, length, width) for t in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.25 + hidden(left)
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0]).reshape(1, -1, 1, 1).expand(rows, -1, length, -1)
    both = torch.cat([scores, sinks], dim=-1)
    both = both - both.max(dim=-1, keepdim=True).values
    weights = F.dropout(F.softmax(both, dim=-1, dtype=both.dtype)[..., :-1], p=0.0, training=False)
    return torch.matmul(weights.to(v.dtype), v)


def sinks_by_definition(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor,
    left: int,
    right: int,
    scale: float,
) -> torch.Tensor:
    """What the flash kernel and the share of its sum give, written out in another way than the models do."""
    times = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(times, 1) for t in (key, value))
    scores = ((query @ key.transpose(-1, -2)) * scale).exp()
    at = torch.arange(query.shape[2], device=query.device)
    far = at[None] - at[:, None]
    seen = ((far >= -left) | (left < 0)) & ((far <= right) | (right < 0))
    scores = scores * seen
    return (scores @ value) / (scores.sum(-1, keepdim=True) + sinks.exp())


def without_sinks(*args: Any) -> torch.Tensor:
    query, key, value, sinks, left, right, scale = args
    return sinks_by_definition(query, key, value, sinks - 100, left, right, scale)


def where(attend: Callable[..., torch.Tensor] = sinks_by_definition) -> Where:
    return Where(("cpu",), frozenset({torch.float32}), (refuses, slow, attend), clock)


def clock(run: Callable[[], torch.Tensor]) -> float:
    """Return the time that is in the result of `slow`, and a shorter one for others."""
    return 2.0 if getattr(run(), "is_slow", False) else 1.0


def refuses(*args: Any) -> torch.Tensor:
    raise RuntimeError("takes no such call")


def slow(*args: Any) -> torch.Tensor:
    made = sinks_by_definition(*args)
    made.is_slow = True  # type: ignore[attr-defined]
    return made


@pytest.fixture(autouse=True)
def nothing_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_attention, "_proven", {})
    monkeypatch.setattr(written_attention, "_times", {})


def inputs(few: int = 4, width: int = 8) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, heads, LENGTH, width, generator=generator) for heads in (4, few, few))


def rewritten(
    run: Callable[..., Any], given: tuple[torch.Tensor, ...], here: Where | None = None, *, gradients: bool = False
) -> tuple[list[str], Any, Notes]:
    """Return the calls of the rewritten graph, what it gives, and what was done to it."""
    gm, values = graph_of(run, *given)
    notes = Notes()
    as_calls(gm, Setting(gradients=gradients), notes, here)
    gm.graph.lint()
    gm.recompile()
    return calls(gm), gm(*values), notes


def calls(gm: fx.GraphModule) -> list[str]:
    return [str(getattr(n.target, "__name__", n.target)) for n in gm.graph.nodes if n.op.startswith("call")]


@pytest.mark.parametrize("run", [masked, biased, bare])
def test_what_is_written_out_becomes_one_call(run: Callable[..., torch.Tensor]) -> None:
    given = inputs()
    found, made, notes = rewritten(run, given)
    assert "scaled_dot_product_attention" in found
    assert not {"softmax", "matmul"} & set(found)
    assert [one.what for one in notes.applied] == ["attention written out: one call"]
    torch.testing.assert_close(made[0], run(*given))


@pytest.mark.parametrize("left", [3, LENGTH])
def test_a_sink_beside_the_scores_is_called_with_the_few_key_heads(left: int) -> None:
    given = inputs(few=2)
    found, made, _ = rewritten(lambda q, k, v: with_sinks(q, k, v, left=left), given, where())
    assert found[-1] == "sinks_by_definition"
    assert not {"softmax", "matmul", "expand_heads", "cat"} & set(found)
    torch.testing.assert_close(made[0], with_sinks(*given, left=left))


def test_a_kernel_that_gives_something_else_is_not_called() -> None:
    given = inputs(few=2)
    here = Where(("cpu",), frozenset({torch.float32}), (without_sinks,), clock)
    found, made, notes = rewritten(with_sinks, given, here)
    assert "softmax" in found
    assert [one.reason for one in notes.left] == ["its call gives something else"]
    torch.testing.assert_close(made[0], with_sinks(*given))


def test_a_sink_stays_on_a_cpu_and_where_the_graph_is_differentiated() -> None:
    given = inputs(few=2)
    assert "softmax" in rewritten(with_sinks, given)[0]
    assert "softmax" in rewritten(with_sinks, given, where(), gradients=True)[0]


def gives_weights(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = (q @ k.transpose(-1, -2)).softmax(-1)
    return weights @ v, weights


def over_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2)).softmax(-2) @ v


def keys_as_they_are(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.view(2, 4, 8, LENGTH)).softmax(-1) @ v


def other_greatest(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2)
    return (scores - scores.max(dim=-2, keepdim=True).values).softmax(-1) @ v


def turned_weights(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2)).softmax(-1).transpose(-1, -2) @ v


@pytest.mark.parametrize("run", [gives_weights, over_queries, keys_as_they_are, other_greatest, turned_weights])
def test_what_is_something_else_stays(run: Callable[..., Any]) -> None:
    given = inputs()
    found, made, _ = rewritten(run, given)
    assert "scaled_dot_product_attention" not in found
    torch.testing.assert_close(made[0], run(*given) if run is not gives_weights else run(*given)[0])


def test_what_is_written_into_in_between_stays() -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
        q.zero_()
        return weights @ v

    given = inputs()
    expected = bare(*given)
    gm, values = graph_of(run, *(t.clone() for t in given))
    as_calls(gm, Setting(), Notes())
    gm.recompile()
    (query,) = (t for t in values if not t.any())
    query.copy_(given[0])
    torch.testing.assert_close(gm(*values)[0], expected)


def test_a_model_in_its_eager_attention_gives_the_same_with_passed_masks() -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16,
    )  # fmt: skip
    model: Any = transformers.LlamaForCausalLM(config)
    model.set_attn_implementation("eager")
    model.eval()
    made = Rewritten(model)
    ids = torch.randint(3, 97, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    padded = torch.ones_like(ids)
    padded[1, :5] = 0
    with torch.no_grad():
        for mask in (torch.ones_like(ids), padded):
            shown = mask.bool()[..., None]
            got, want = made(ids, attention_mask=mask).logits, model(ids, attention_mask=mask).logits
            torch.testing.assert_close(got * shown, want * shown, rtol=1e-4, atol=1e-4)
    assert made.applied["written-attention"] == 2


@pytest.mark.gpu
@pytest.mark.parametrize(("left", "right"), [(127, 0), (-1, 0), (-1, -1)])
def test_the_flash_kernels_sum_gives_the_sinks_their_share(left: int, right: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(1, h, 1024, 64, generator=generator, device="cuda").bfloat16() for h in (8, 2, 2))
    sinks = torch.linspace(-2, 6, 8, device="cuda").reshape(1, -1, 1, 1).expand(1, -1, 1024, -1)
    exact = sinks_by_definition(q.double(), k.double(), v.double(), sinks.double(), left, right, 0.125)
    made = attention_with_sinks(q, k, v, sinks.bfloat16(), left, right, 0.125).double()
    assert (made - exact).abs().max() < 0.03
