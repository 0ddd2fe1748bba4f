"""Rewritten models are the models: whatever mask they are called with, and whatever becomes of their weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rewritten_models import Rewritten, small_model

from hotswap.integrator import program
from hotswap.integrator.rewrites import plan
from hotswap.integrator.rewrites.rewrite import Rewrite


def same(got: Any, want: Any) -> None:
    """Compare the leading outputs; merged products and attention without a mask may round another way."""
    torch.testing.assert_close(got[0], want[0], rtol=1e-5, atol=1e-5)


def masks() -> dict[str, torch.Tensor]:
    left, right = (torch.ones(2, 12, dtype=torch.long) for _ in range(2))
    left[0, :5] = 0
    right[1, 7:] = 0
    return {"left": left, "ones": torch.ones(2, 12, dtype=torch.long), "right": right}


class Later:
    """Flags of a device whose answers are waited for."""

    def busy(self) -> bool:
        return False

    def send(self, flag: torch.Tensor) -> Callable[[], bool]:
        return lambda: bool(flag)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "qwen3"])
@pytest.mark.parametrize("flags", [None, Later()], ids=["read at once", "waited for"])
def test_a_mask_is_what_it_is_at_each_call(
    kind: str, flags: Later | None, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "flags_for", lambda _: flags)
    model = small_model(kind)
    made = Rewritten(model)
    ones = [torch.ones(2, 12, dtype=torch.long)] * 3
    with torch.no_grad():
        for mask in [*ones, *masks().values(), *ones, *reversed(masks().values())]:
            # Positions that are padding have no meaning, and a fully hidden row none at all.
            shown = mask.bool()[..., None]
            got, want = made(ids, attention_mask=mask)[0], model(ids, attention_mask=mask)[0]
            torch.testing.assert_close(got * shown, want * shown, rtol=1e-5, atol=1e-5)
    assert len(made.backend.graphs) == 1
    assert made.applied["mask-choice"]


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_without_a_mask_nothing_else_comes_out(kind: str, ids: torch.Tensor) -> None:
    model = small_model(kind)
    made = Rewritten(model)
    with torch.no_grad():
        want = model(ids)
        same(made(ids), want)
    assert made.applied["merge-linears"]


def test_where_a_rewrite_fails_the_graph_runs_without_rewrites_and_says_which_way_it_failed(
    ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no such library here")

    monkeypatch.setattr(plan, "REWRITES", (*plan.REWRITES, Rewrite("fails", "it fails", fails)))
    model = small_model("llama")
    made = Rewritten(model)
    with torch.no_grad():
        same(made(ids), model(ids))
    assert not made.backend.rewritten
    assert ["no such library here" in left.reason for left in made.backend.not_rewritten] == [True]


@pytest.fixture
def merged(ids: torch.Tensor) -> Rewritten:
    made = Rewritten(small_model("llama"))
    with torch.no_grad():
        made(ids)
    assert len(made.packs)
    return made


def test_weights_written_in_place_are_seen(merged: Rewritten, ids: torch.Tensor) -> None:
    with torch.no_grad():
        merged.model.model.layers[0].self_attn.k_proj.weight.mul_(-3.0)
        same(merged(ids), merged.model(ids))


def test_a_loaded_state_dict_is_seen(merged: Rewritten, ids: torch.Tensor) -> None:
    merged.model.load_state_dict({k: v * 1.5 for k, v in merged.model.state_dict().items()})
    with torch.no_grad():
        same(merged(ids), merged.model(ids))


def test_a_parameter_with_other_memory_is_brought_back(merged: Rewritten, ids: torch.Tensor) -> None:
    weight = merged.model.model.layers[0].mlp.up_proj.weight
    weight.data = torch.randn_like(weight)
    with torch.no_grad():
        same(merged(ids), merged.model(ids))
    assert merged.packs.repacked == 1


def test_a_replaced_parameter_is_seen(merged: Rewritten, ids: torch.Tensor) -> None:
    layer = merged.model.model.layers[0].mlp.up_proj
    layer.weight = torch.nn.Parameter(torch.randn_like(layer.weight))
    with torch.no_grad():
        same(merged(ids), merged.model(ids))


def test_training_after_a_merge_gives_the_same_gradients_and_the_next_call_the_new_weights(
    merged: Rewritten, ids: torch.Tensor
) -> None:
    plain = small_model("llama")
    for model, run in ((merged.model, merged), (plain, plain)):
        step = torch.optim.SGD(model.parameters(), lr=0.1)
        run(ids)[0].square().mean().backward()
        step.step()
    for (name, mine), (_, theirs) in zip(merged.model.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6, msg=name)
    with torch.no_grad():
        same(merged(ids), plain(ids))


def test_memory_is_held_once(merged: Rewritten) -> None:
    attention = merged.model.model.layers[0].self_attn
    storages = {w.untyped_storage().data_ptr() for w in (attention.q_proj.weight, attention.k_proj.weight)}
    assert len(storages) == 1


def test_restored_parameters_have_memory_of_their_own_and_the_next_call_is_right(
    merged: Rewritten, ids: torch.Tensor
) -> None:
    merged.packs.restore()
    for weight in merged.model.parameters():
        assert weight.untyped_storage().nbytes() == weight.numel() * weight.element_size()
    with torch.no_grad():
        same(merged(ids), merged.model(ids))


def test_a_merged_model_is_copied_and_saved_like_any_other(
    merged: Rewritten, ids: torch.Tensor, tmp_path: Path
) -> None:
    twin = copy.deepcopy(merged.model)
    merged.model.save_pretrained(tmp_path)
    again = type(merged.model).from_pretrained(tmp_path)
    with torch.no_grad():
        want = merged.model(ids)
        same(twin(ids), want)
        same(again(ids), want)


def test_a_tie_by_storage_is_not_torn(ids: torch.Tensor) -> None:
    model = small_model("llama")
    attention = model.model.layers[0].self_attn
    model.twin = torch.nn.Parameter(attention.k_proj.weight.data)
    made = Rewritten(model)
    with torch.no_grad():
        made(ids)
        attention.k_proj.weight.zero_()
    assert not model.twin.any()
    assert any("something else holds" in left.reason for left in made.backend.not_rewritten)


def test_a_rewrite_that_is_off_changes_nothing(ids: torch.Tensor) -> None:
    made = Rewritten(small_model("llama"), off=frozenset({"rewrite:merge-linears"}))
    with torch.no_grad():
        made(ids)
    assert not made.applied["merge-linears"]
    assert not len(made.packs)


def test_without_a_place_for_packs_parameters_are_left_alone(ids: torch.Tensor) -> None:
    model = small_model("llama")
    before = [p.data_ptr() for p in model.parameters()]
    backend = Rewritten(model, packs=None)
    with torch.no_grad():
        same(backend(ids), model(ids))
    assert before == [p.data_ptr() for p in model.parameters()]
