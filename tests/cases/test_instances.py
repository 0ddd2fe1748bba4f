"""What a patch may touch: one instance, and nothing of it that others see (A20, A42 to A46, A59)."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Block, Net, Norm, batch, net, tiny_llama
from stand_ins import by_hand, kernel_calls, winners_of, with_source
from torch import fx, nn

import hotswap
from hotswap.extractor.node_ops import example
from hotswap.extractor.regions import find_regions
from hotswap.integrator.patch import Patch, Way, patch_of
from hotswap.models.errors import VerificationFailed
from hotswap.optimizer.winner import Winner

Patched = Callable[..., Patch]
SaveRun = Callable[[list[Winner]], Path]

WAYS = pytest.mark.parametrize("way", ["graph", "module"])


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
@WAYS
def test_a20_a_model_that_deepcopy_refuses_is_patched_and_stays_as_it_was(way: Way, patched: Patched) -> None:
    model = net()
    old: nn.Linear = nn.utils.weight_norm(nn.Linear(32, 32))
    model.blocks.append(nn.Sequential(old))
    x = batch()
    with torch.enable_grad():
        old(x)
        model.register_buffer("cache", torch.zeros(1))
        model.__dict__["table"] = model.norm.weight * 2
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)
    want = model(x)
    before = list(model.__dict__.items())
    made = patched(model, x, way=way)
    torch.testing.assert_close(model(x), want, rtol=0, atol=0)
    assert way == "module" or kernel_calls(made)
    hotswap.unpatch(model)
    assert all(a is b for (_, a), (_, b) in zip(model.__dict__.items(), before, strict=True))


def test_a42_a_patch_counts_the_places_of_a_model_built_before_it(patched: Patched) -> None:
    model, x = net(), batch()
    made = patched(model, x)
    model(x)
    by_sites = sorted(e.sites for e in made.engagement())
    # The first norm, the second with the residual it adds and hands on, the last with one it does not; two activations.
    assert by_sites == [1, 1, 1, 2]
    made.require_engaged()


def test_a42_a_patch_that_replaces_nothing_is_an_error_when_asked(save_run: SaveRun) -> None:
    other = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), Norm(32, eps=0.5)).eval()
    made = hotswap.patch(other, save_run(winners_of(net().forward, batch())))
    with pytest.warns(UserWarning, match="is patched, but none of its"):
        other(batch())
    with pytest.raises(VerificationFailed, match=r"none of its .* regions"):
        made.require_engaged()


@WAYS
def test_a43_student_and_teacher_of_one_class_do_not_share_a_patch(way: Way, save_run: SaveRun) -> None:
    student, teacher, x = net(), net(), batch()
    # A norm alone, which is a module's forward, and others which are none.
    ruin = [with_source(w, "def kernel(*inputs):\n    return inputs[0] * 0\n") for w in winners_of(student.forward, x)]
    want, facts = teacher(x), dict(vars(Norm))
    made = hotswap.patch(student, save_run(ruin), way=way)
    assert not torch.equal(student(x), want)
    assert kernel_calls(made)
    assert torch.equal(teacher(x), want)
    assert vars(Norm) == facts
    assert not any("forward" in module.__dict__ for module in teacher.modules())


class Lora(nn.Module):
    """An adapter around a frozen linear, as PEFT makes them."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_a = nn.Linear(base.in_features, 4, bias=False)
        self.lora_b = nn.Linear(4, base.out_features, bias=False)
        self.merged = False
        self.active = True

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        result = self.base_layer(x, *args, **kwargs)
        if self.active and not self.merged:
            result = result + self.lora_b(self.lora_a(x)) * 2.0
        return result


class ModulesToSave(nn.Module):
    """A trainable copy beside the frozen original, one of which is in use, as PEFT makes them."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original_module = original
        self.modules_to_save = nn.ModuleDict({"default": copy.deepcopy(original)})
        self.active = "default"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        chosen = self.modules_to_save[self.active] if self.active else self.original_module
        return chosen(*args, **kwargs)


def adapted(model: Net) -> Net:
    """Put adapters on the gates and copies of the norms into `model`; only they are left trainable."""
    torch.manual_seed(5)
    model.requires_grad_(False)
    for block in model.blocks:
        assert isinstance(block, Block)
        block.gate = Lora(block.gate)
        block.norm = ModulesToSave(block.norm)
        block.norm.modules_to_save.requires_grad_()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


@WAYS
def test_a44_adapters_put_in_after_the_patch_are_used_switched_and_trained(way: Way, save_run: SaveRun) -> None:
    model, plain, x = net(), net(), batch()
    made = hotswap.patch(model, save_run(winners_of(model.forward, x)), way=way)
    assert torch.equal(model(x), plain(x))
    for each in (model, plain):
        adapted(each)
    assert torch.equal(model(x), plain(x))
    ran = kernel_calls(made)
    for each in (model, plain):
        each.get_submodule("blocks.0.gate").active = False
        each.get_submodule("blocks.1.norm").active = ""
    assert torch.equal(model(x), plain(x))
    assert kernel_calls(made) > ran
    with torch.enable_grad():
        for each in (model, plain):
            each.get_submodule("blocks.0.gate").active = True
            each(x).square().mean().backward()
    pairs = list(zip(model.named_parameters(), plain.named_parameters(), strict=True))
    assert sum(p.grad is not None for (_, p), _ in pairs) == 5  # two adapters of two, one norm: the other is off
    for (name, mine), (_, theirs) in pairs:
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is not None and theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=0, msg=name)


PACKS = """
import torch

STATIC_WEIGHTS = True


def prepare(x, weight):
    return weight.t().contiguous()


def kernel(x, weight, *, packed):
    return x @ packed
"""


def packed_head(model: Any, ids: torch.Tensor) -> Winner:
    """Return a winner for the model's head that packs its weight: a copy which must follow what happens to it."""
    found: list[Winner] = []

    def record(gm: fx.GraphModule, _: object) -> Callable[..., Any]:
        heads = (r for r in find_regions(gm) if r.kind == "anchor" and example(r.outputs[0]).shape[-1] == 128)
        found.extend(by_hand(gm, region) for region in heads)
        return gm.forward

    torch.compile(model, backend=record)(input_ids=ids, use_cache=False)
    torch._dynamo.reset()
    (winner,) = found
    return with_source(winner, PACKS)


def test_a45_tied_weights_stay_tied_through_a_packed_head_saving_and_resizing(
    save_run: SaveRun, tmp_path: Path
) -> None:
    llama = tiny_llama()
    ids = torch.randint(1, 128, (2, 7), generator=torch.Generator().manual_seed(0))
    made = hotswap.patch(llama, save_run([packed_head(llama.forward, ids)]))
    logits = llama(input_ids=ids, use_cache=False).logits
    assert kernel_calls(made) == 15  # all linears are one region, whatever their sizes
    embedding, head = llama.model.embed_tokens, llama.lm_head
    assert head.weight is embedding.weight
    llama.save_pretrained(tmp_path / "saved")
    loaded = type(llama).from_pretrained(tmp_path / "saved").eval()
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    torch.testing.assert_close(loaded(input_ids=ids).logits, logits)
    embedding.weight.mul_(2)
    doubled = llama(input_ids=ids, use_cache=False).logits
    loaded.model.embed_tokens.weight.mul_(2)
    torch.testing.assert_close(doubled, loaded(input_ids=ids).logits)
    for each in (llama, loaded):
        torch.manual_seed(3)
        each.resize_token_embeddings(140, mean_resizing=False)
    assert llama.lm_head.weight is llama.model.embed_tokens.weight
    loaded.load_state_dict(llama.state_dict())
    torch.testing.assert_close(llama(input_ids=ids).logits, loaded(input_ids=ids).logits)


@WAYS
def test_a46_keys_are_the_same_in_both_directions(way: Way, patched: Patched, tmp_path: Path) -> None:
    model, plain, x = net(), net(), batch()
    keys = [(k, v.shape) for k, v in model.state_dict().items()]
    patched(model, x, way=way)
    model(x)
    assert [(k, v.shape) for k, v in model.state_dict().items()] == keys
    torch.save(model.state_dict(), tmp_path / "patched.pt")
    plain.load_state_dict({k: v * 2 for k, v in torch.load(tmp_path / "patched.pt").items()})
    assert not torch.equal(model(x), plain(x))
    model.load_state_dict(plain.state_dict())
    assert torch.equal(model(x), plain(x))


@WAYS
def test_copies_and_pickles_are_the_unpatched_model(way: Way, patched: Patched) -> None:
    model, x = net(), batch()
    patched(model, x, way=way)
    want = model(x)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    for other in (
        copy.deepcopy(model),
        copy.copy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(saved, weights_only=False),
    ):
        assert patch_of(other) is None
        assert "forward" not in other.__dict__
        assert torch.equal(other(x), want)


class Forked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = Norm(32), Norm(32, eps=0.25)

    def forward(self, x: torch.Tensor, *, rare: bool = False) -> torch.Tensor:
        return self.unused(x) if rare else self.used(x)


@WAYS
def test_a59_a_kernel_off_the_executed_path_is_shown_as_not_engaged(way: Way, save_run: SaveRun) -> None:
    model, x = Forked().eval(), batch()
    rare, usual = winners_of(model.forward, x, rare=True), winners_of(model.forward, x)
    made = hotswap.patch(model, save_run([*rare, *usual]), way=way)
    model(x)
    counted = {e.task: (e.sites, e.kernel_calls) for e in made.engagement()}
    assert counted == {rare[0].task: (0, 0), usual[0].task: (1, 1)}
    model(x, rare=True)
    counted = {e.task: (e.sites, e.kernel_calls) for e in made.engagement()}
    assert counted == {rare[0].task: (1, 1), usual[0].task: (1, 1)}
