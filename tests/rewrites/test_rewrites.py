"""Each rewrite alone: what it takes to be proven, and what keeps it from being made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from rewritten_models import graph_of
from torch import fx, nn

from hotswap.integrator.rewrites import attention_backend
from hotswap.integrator.rewrites.attention_backend import choose_back_ends
from hotswap.integrator.rewrites.drop_copies import DROP_COPIES
from hotswap.integrator.rewrites.fold_shapes import FOLD_SHAPES
from hotswap.integrator.rewrites.graph_edit import constant
from hotswap.integrator.rewrites.grouped_heads import ungroup
from hotswap.integrator.rewrites.mask_choice import specialise
from hotswap.integrator.rewrites.mask_form import MaskForm, mask_form
from hotswap.integrator.rewrites.merge_linears import MERGE_LINEARS
from hotswap.integrator.rewrites.pad_rows import pad
from hotswap.integrator.rewrites.parameter_packs import ParameterPacks
from hotswap.integrator.rewrites.plain_attention import PLAIN_ATTENTION
from hotswap.integrator.rewrites.rewrite import Notes, Setting

CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()
FP32 = frozenset({torch.float32})
sdpa = F.scaled_dot_product_attention


def targets(gm: fx.GraphModule) -> list[str]:
    return [str(getattr(n.target, "__name__", n.target)) for n in gm.graph.nodes if n.op.startswith("call")]


def done(gm: fx.GraphModule) -> fx.GraphModule:
    gm.graph.lint()
    gm.recompile()
    return gm


def additive(seen: torch.Tensor, hidden: float) -> torch.Tensor:
    return torch.zeros(seen.shape).masked_fill(~seen, hidden)


@pytest.mark.parametrize(
    ("mask", "form"),
    [
        (torch.ones(1, 1, 6, 6, dtype=torch.bool), MaskForm("all")),
        (torch.ones(2, 1, 1, 6, dtype=torch.bool), MaskForm("all")),
        (torch.zeros(6, 6), MaskForm("all")),
        (CAUSAL, MaskForm("causal")),
        (CAUSAL.expand(2, 1, 6, 6), MaskForm("causal")),
        (additive(CAUSAL, float("-inf")), MaskForm("causal")),
        (additive(CAUSAL, torch.finfo(torch.float32).min), MaskForm("causal")),
        (CAUSAL.triu(-2), MaskForm("window", left=2)),
        (torch.ones_like(CAUSAL).triu(-1).tril(2), MaskForm("window", left=1, right=2)),
        (CAUSAL.T, MaskForm("window", right=5)),
        (CAUSAL.flip(0), None),
        (torch.stack([CAUSAL, torch.ones_like(CAUSAL)])[:, None], None),
        (CAUSAL.float() * 0.5, None),
        (additive(CAUSAL, -1.0), None),
        (torch.zeros(6, 6, dtype=torch.bool), None),
    ],
)
def test_a_mask_is_recognised_by_its_value(mask: torch.Tensor, form: MaskForm | None) -> None:
    assert mask_form(mask, 6, 6) == form


def test_a_causal_mask_of_more_keys_than_queries_has_no_form() -> None:
    assert mask_form(torch.ones(2, 6, dtype=torch.bool).tril(), 2, 6) is None


def folded(run: Callable[..., Any], *args: Any) -> tuple[fx.GraphModule, tuple[Any, ...]]:
    gm, inputs = graph_of(run, *args)
    FOLD_SHAPES.apply(gm, Setting(), Notes())
    return done(gm), inputs


def test_what_depends_on_shapes_alone_is_computed_once() -> None:
    gm, inputs = folded(lambda x: x + torch.arange(x.shape[0]).float().cos(), torch.randn(5))
    assert targets(gm) == ["add"]
    torch.testing.assert_close(gm(*inputs)[0], inputs[0] + torch.arange(5).float().cos())


def test_what_comes_from_an_argument_is_not_folded() -> None:
    gm, _ = folded(lambda x, mask: x * torch.cumsum(mask, -1), torch.randn(5), torch.ones(5))
    assert "cumsum" in targets(gm)


def test_random_numbers_are_drawn_at_each_call() -> None:
    gm, _ = folded(lambda x: x + torch.rand(5), torch.randn(5))
    assert "rand" in targets(gm)


def test_a_constant_that_is_returned_or_written_into_is_made_anew() -> None:
    gm, _ = folded(lambda x: (x + 1, torch.arange(5)), torch.randn(5))
    assert "arange" in targets(gm)
    gm, inputs = folded(lambda x: torch.zeros(5).add_(x) * 1, torch.randn(5))
    for _ in range(2):
        torch.testing.assert_close(gm(*inputs)[0], inputs[0])


def attend(q: torch.Tensor) -> torch.Tensor:
    length = q.shape[-2]
    mask = torch.arange(length)[None] <= torch.arange(length)[:, None]
    return sdpa(q, q, q, attn_mask=mask)


def test_attention_is_called_without_a_causal_mask() -> None:
    gm, inputs = graph_of(attend, torch.randn(1, 2, 6, 8))
    PLAIN_ATTENTION.apply(gm, Setting(), Notes())
    assert targets(done(gm)) == ["scaled_dot_product_attention"]
    (node,) = [n for n in gm.graph.nodes if n.op == "call_function"]
    assert (node.kwargs["attn_mask"], node.kwargs["is_causal"]) == (None, True)
    torch.testing.assert_close(gm(*inputs)[0], attend(*inputs))


def test_a_position_bias_is_no_mask() -> None:
    gm, _ = graph_of(lambda q: sdpa(q, q, q, attn_mask=torch.arange(6).float().expand(6, 6)), torch.randn(1, 2, 6, 8))
    PLAIN_ATTENTION.apply(gm, Setting(), Notes())
    (node,) = [n for n in gm.graph.nodes if n.target is sdpa]
    assert node.kwargs["attn_mask"] is not None


def test_a_passed_mask_gets_a_form_for_when_it_hides_nothing() -> None:
    def run(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return sdpa(q, q, q, attn_mask=mask[:, None, None].bool())

    q, hides = torch.randn(1, 2, 6, 8), torch.tensor([[1, 1, 1, 1, 0, 0]])
    gm, inputs = graph_of(run, q, hides)
    condition = specialise(gm, Notes())
    assert condition is not None
    assert not condition.holds(inputs)
    whole = tuple(torch.ones_like(hides) if i == condition.position else q for i in range(2))
    assert condition.holds(whole)
    torch.testing.assert_close(done(gm)(*whole)[0], run(q, torch.ones_like(hides)))


def test_a_mask_of_two_arguments_has_no_such_form() -> None:
    def run(q: torch.Tensor, mask: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return sdpa(q, q, q, attn_mask=(mask & other)[:, None, None])

    ones = torch.ones(1, 6, dtype=torch.bool)
    gm, _ = graph_of(run, torch.randn(1, 2, 6, 8), ones, ones.clone())
    assert specialise(gm, Notes()) is None


def repeat(k: torch.Tensor, times: int) -> torch.Tensor:
    b, h, n, d = k.shape
    return k[:, :, None].expand(b, h, times, n, d).reshape(b, h * times, n, d)


def test_repeated_heads_are_read_once() -> None:
    def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return sdpa(q, repeat(k, 2), repeat(k, 2))

    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8)
    gm, inputs = graph_of(run, q, k)
    ungroup(gm, Notes(), on=("cpu",), dtypes=FP32)
    assert targets(done(gm)) == ["scaled_dot_product_attention"]
    torch.testing.assert_close(gm(*inputs)[0], run(q, k))


def test_heads_repeated_in_another_order_stay() -> None:
    def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        wide = k[:, None].expand(1, 2, 2, 6, 8).reshape(1, 4, 6, 8)
        return sdpa(q, wide, wide)

    gm, _ = graph_of(run, torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8))
    ungroup(gm, Notes(), on=("cpu",), dtypes=FP32)
    assert "reshape" in targets(gm)


@pytest.mark.parametrize("heads_of_mask", [1, 4])
def test_heads_of_a_single_masked_query_become_queries_of_their_key_head(heads_of_mask: int) -> None:
    def run(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        wide = k[:, :, None].expand(2, 2, 2, 6, 8).reshape(2, 4, 6, 8)
        return sdpa(q, wide, wide, attn_mask=mask).transpose(1, 2).reshape(2, 1, -1)

    q, k = torch.randn(2, 1, 4, 8).transpose(1, 2), torch.randn(2, 2, 6, 8)
    mask = (torch.arange(6) <= torch.tensor([2, 4])[:, None])[:, None, None].expand(2, heads_of_mask, 1, 6)
    gm, inputs = graph_of(run, q, k, mask)
    ungroup(gm, Notes(), on=("cpu",), dtypes=FP32)
    (call,) = (n for n in done(gm).graph.nodes if n.target is sdpa)
    queries = tuple(call.args[0].meta["example_value"].shape)
    assert queries == ((2, 2, 2, 8) if heads_of_mask == 1 else (2, 4, 1, 8))
    torch.testing.assert_close(gm(*inputs)[0], run(q, k, mask))


def test_attention_reads_what_was_concatenated_with_nothing() -> None:
    def run(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys = torch.cat([torch.tensor([]), q], -2)
        return sdpa(q, keys, keys), keys

    gm, inputs = graph_of(run, torch.randn(1, 2, 6, 8))
    DROP_COPIES.apply(gm, Setting(), Notes())
    out, keys = done(gm)(*inputs)
    torch.testing.assert_close(out, run(*inputs)[0])
    assert keys.data_ptr() != inputs[0].data_ptr()  # what the user gets is still a copy
    assert next(n for n in gm.graph.nodes if n.target is sdpa).args[1].op == "placeholder"


class Two(nn.Module):
    def __init__(self, *, returned: bool = False) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 4), nn.Linear(8, 12)
        self.returned = returned

    def forward(self, x: torch.Tensor) -> Any:
        one, other = self.one(x), self.other(x)
        return (one, other.exp()) if self.returned else one.exp().sum() + other.exp().sum()


@pytest.mark.parametrize("returned", [True, False])
def test_linears_are_merged_unless_the_user_gets_a_result(returned: bool) -> None:
    model, x, notes, packs = Two(returned=returned), torch.randn(3, 8), Notes(), ParameterPacks()
    gm, inputs = graph_of(model, x)
    MERGE_LINEARS.apply(gm, Setting(packs, False, inputs), notes)
    assert targets(done(gm)).count("linear") == (2 if returned else 1)
    assert len(packs) == (0 if returned else 2)
    with torch.no_grad():
        torch.testing.assert_close(
            gm(*inputs), torch.utils._pytree.tree_map(lambda t: t, graph_of(model, x)[0](*inputs))
        )


def test_a_differentiated_graph_keeps_its_linears() -> None:
    gm, inputs = graph_of(Two(), torch.randn(3, 8))
    notes, packs = Notes(), ParameterPacks()
    MERGE_LINEARS.apply(gm, Setting(packs, True, inputs), notes)
    assert [left.reason for left in notes.left] == ["the graph is differentiated"]
    assert not len(packs)


def test_a_padded_head_gives_the_same_and_keeps_its_tie() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(300, 8)
            self.head = nn.Linear(8, 300, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids))  # type: ignore[no-any-return]

    model, ids, packs = Tied(), torch.tensor([[1, 299, 7]]), ParameterPacks()
    gm, inputs = graph_of(model, ids)
    pad(gm, Setting(packs, False, inputs), Notes(), on=("cpu",), dtypes=FP32, least=256)
    done(gm)
    with torch.no_grad():
        model.embed.weight[299].zero_()
        got, want = gm(*inputs)[0], model(ids)
    torch.testing.assert_close(got, want)
    assert got.shape == want.shape
    assert got.stride(-2) == 320
    assert model.head.weight is model.embed.weight
    assert got.view(-1, 300).shape == (3, 300)


def test_what_flattens_a_head_keeps_it_unpadded() -> None:
    head = nn.Linear(8, 300, bias=False)
    gm, inputs = graph_of(lambda x: head(x).view(-1).exp(), torch.randn(2, 8))
    notes = Notes()
    pad(gm, Setting(ParameterPacks(), False, inputs), notes, on=("cpu",), dtypes=FP32, least=256)
    assert ["contiguous" in left.reason for left in notes.left] == [True]


@pytest.fixture
def back_ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for a GPU's kernels: the first refuses, the second is wrong, the third is right."""
    called: list[str] = []

    def refuses(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise RuntimeError("No available kernel. Aborting execution.")

    def wrong(*args: Any, **kwargs: Any) -> torch.Tensor:
        return sdpa(*args, **kwargs) + 1

    def right(*args: Any, **kwargs: Any) -> torch.Tensor:
        called.append("right")
        return sdpa(*args, **kwargs)

    refuses.__name__, wrong.__name__, right.__name__ = "by_refusing", "by_wrong", "by_right"
    monkeypatch.setattr(attention_backend, "BACK_ENDS", (refuses, wrong, right))
    monkeypatch.setattr(attention_backend, "_chosen", {})
    return called


def clock(usual: float, right: float) -> Callable[[Callable[[], torch.Tensor]], float]:
    return lambda run: usual if run.func is sdpa else right  # type: ignore[attr-defined]


def test_the_fastest_right_back_end_is_called(back_ends: list[str]) -> None:
    gm, inputs = graph_of(lambda q: sdpa(q, q, q), torch.randn(1, 2, 6, 8))
    notes = Notes()
    choose_back_ends(gm, notes, on=("cpu",), clock=clock(10.0, 5.0))
    back_ends.clear()
    done(gm)(*inputs)
    assert back_ends == ["right"]
    assert notes.applied[0].what == "torch's choice 10.0 us, refusing does not take it, wrong differs, right 5.0 us"


def test_a_back_end_within_noise_of_torchs_choice_is_left(back_ends: list[str]) -> None:
    gm, _ = graph_of(lambda q: sdpa(q, q, q), torch.randn(1, 2, 6, 8))
    notes = Notes()
    choose_back_ends(gm, notes, on=("cpu",), clock=clock(10.0, 9.9))
    assert not notes.applied
    assert len(notes.left) == 1


def test_constants_of_a_copied_graph_have_names_of_their_own() -> None:
    gm, inputs = graph_of(lambda x: x + torch.arange(5) + torch.arange(5, 10) * torch.ones(5), torch.randn(5))
    one, two = torch.ones(5), torch.zeros(5)
    first = next(n for n in gm.graph.nodes if n.op == "call_function")
    names = [constant(gm, first, value).target for value in (one, one, two, two, one)]
    assert len(set(names)) == 5
    assert torch.equal(getattr(gm, str(names[2])), two)
    assert inputs
