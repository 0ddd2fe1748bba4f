"""How a patched model may be called and by whom (A35, A41, A47 to A49, A54 to A56, A62), hooks and generation."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Block, Net, Norm, batch, net, tiny_llama
from stand_ins import fallback_reasons, kernel_calls, winners_of, with_source
from torch import nn

import hotswap
from hotswap.integrator import backend
from hotswap.integrator.export import Made, export
from hotswap.integrator.patch import Patch, Way
from hotswap.models.errors import SpecError
from hotswap.optimizer.winner import Domain, Winner

Patched = Callable[..., Patch]
SaveRun = Callable[[list[Winner]], Path]

# What torch hides from users reaches those who make errors of warnings: a compile looks at .grad of what it is given.
TORCHS_OWN = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
WAYS = pytest.mark.parametrize("way", ["graph", "module"])


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@WAYS
def test_a35_sixteen_lengths_compile_once_more_and_run_kernels_at_each(way: Way, patched: Patched) -> None:
    model, plain = net(), net()
    made = patched(model, batch(), way=way)
    counts = []
    for length in range(1003, 1019):
        x = batch(length)
        assert torch.equal(model(x), plain(x))
        counts.append(made.compiles)
    # The second length makes the length a symbol: for the graph, or for each kind of module once.
    assert counts[1:] == [counts[1]] * 15
    assert counts[1] <= 2 if way == "graph" else counts[1] <= counts[0] + len(list(model.modules()))
    sites = sum(e.sites for e in made.engagement())
    assert kernel_calls(made) == 16 * sites
    assert not fallback_reasons(made)


def test_a41_a_region_that_inductor_won_is_left_to_it_with_the_reason(save_run: SaveRun) -> None:
    model, x = net(), batch()
    first, *rest = winners_of(model.forward, x)
    theirs = dataclasses.replace(first, choice="inductor", source=None, reason="Inductor's code was 1.2x ours")
    made = hotswap.patch(model, save_run([theirs, *rest]))
    assert torch.equal(model(x), net()(x))
    assert [left.reason for g in made.swaps for left in g.left] == [
        "Inductor's own code won this region; the inductor tail runs it"
    ]
    assert theirs.task not in {e.task for e in made.engagement()}


class Offload:
    """What accelerate's offload hooks do: weights are on meta but for the time of a call, forward is replaced."""

    def __init__(self, module: nn.Module) -> None:
        self.kept = {name: p.detach().clone() for name, p in module.named_parameters(recurse=False)}
        self.forward = module.forward
        self.calls = 0
        self._place(module, None)
        module.forward = functools.update_wrapper(functools.partial(self.run, module), self.forward)

    def _place(self, module: nn.Module, values: dict[str, torch.Tensor] | None) -> None:
        for name, value in self.kept.items():
            where = value if values else torch.empty_like(value, device="meta")
            module._parameters[name] = nn.Parameter(where, requires_grad=False)

    def run(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        self._place(module, self.kept)
        result = self.forward(*args, **kwargs)
        self._place(module, None)
        return result


def test_a47_offloaded_weights_are_refused_for_the_graph_and_left_alone_module_by_module(
    patched: Patched, save_run: SaveRun
) -> None:
    model, plain, x = net(), net(), batch()
    winners = winners_of(model.forward, x)
    hooks = [Offload(model.blocks[0].norm), Offload(model.blocks[1].gate)]
    with pytest.raises(SpecError, match=r"parameter 'blocks.0.norm.weight' is on the meta device .*way='module'"):
        hotswap.patch(model, save_run(winners))
    made = hotswap.patch(model, save_run(winners), way="module")
    for _ in range(2):
        assert torch.equal(model(x), plain(x))
    assert [hook.calls for hook in hooks] == [2, 2]
    assert kernel_calls(made)  # the other norms
    left = {left.place for g in made.swaps for left in g.left}
    assert left == {"blocks.0.norm", "blocks.1.gate"}


@WAYS
def test_a47_weights_offloaded_after_the_patch_still_come_through_their_hook(way: Way, patched: Patched) -> None:
    model, plain, x = net(), net(), batch()
    patched(model, x, way=way)
    model(x)
    hook = Offload(model.blocks[0].gate)
    for calls in (1, 2):
        assert torch.equal(model(x), plain(x))
        assert hook.calls == calls


def test_a48_an_outer_compile_takes_the_patched_model_whole_forwards_and_backwards(patched: Patched) -> None:
    class Outer(Net):
        pass

    torch.manual_seed(0)
    model, x = Outer().eval(), batch()
    plain = net()
    made = patched(model, x)
    outer = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.enable_grad():
        with pytest.warns(UserWarning, match="Outer is patched.*compile it with backend='hotswap'"):
            got = outer(x)
        want = plain(x)
        mine = torch.autograd.grad(got.square().mean(), list(model.parameters()))
        theirs = torch.autograd.grad(want.square().mean(), list(plain.parameters()))
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(mine, theirs)
    assert kernel_calls(made) == 0
    assert torch.equal(model(x), plain(x))
    assert kernel_calls(made)


def test_a48_the_backend_by_name_takes_a_model_whole_and_runs_its_kernels(save_run: SaveRun) -> None:
    model, x = net(), batch()
    run = save_run(winners_of(model.forward, x))
    compiled = torch.compile(model, fullgraph=True, backend="hotswap", options={"run": str(run)})
    before = sum(e.kernel_calls for e in backend.engagement())
    assert torch.equal(compiled(x), model(x))
    assert sum(e.kernel_calls for e in backend.engagement()) == before + 5
    with torch.enable_grad():
        compiled(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    "body",
    ["return inputs[0]", "return inputs[0][:]", "inputs[0].add_(1)\n    return inputs[0]"],
    ids=["its input", "a view of its input", "its input, written to"],
)
@WAYS
def test_a49_a_kernel_that_returns_what_it_was_given_is_never_believed(way: Way, body: str, save_run: SaveRun) -> None:
    model, x = Norm().eval(), batch()
    (winner,) = winners_of(model.forward, x)
    made = hotswap.patch(model, save_run([with_source(winner, f"def kernel(*inputs):\n    {body}\n")]), way=way)
    given = x.clone()
    with pytest.warns(UserWarning, match="opcheck"):
        model(given)
    assert torch.equal(model(given), Norm()(x))
    assert torch.equal(given, x)
    assert kernel_calls(made) == 0


class Newer(Block):
    """The same layer in a newer library: one argument more, which some callers pass."""

    def forward(self, x: torch.Tensor, *, scale: float | None = None, **kwargs: Any) -> torch.Tensor:
        out = super().forward(x)
        return out if scale is None else out * scale + kwargs.get("shift", 0.0)


class Passing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = Newer(), Norm()

    def forward(self, x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return self.norm(self.layer(x, **kwargs))


@WAYS
def test_a54_arguments_unknown_at_tuning_time_are_passed_on_and_mean_what_they_mean(way: Way, patched: Patched) -> None:
    torch.manual_seed(0)
    model, x = Passing().eval(), batch()
    plain = copy.deepcopy(model)
    made = patched(model, x, way=way)
    for more in ({}, {"scale": 2.0}, {"cache": None}, {"scale": 2.0, "shift": 1.5}, {"output_attentions": True}):
        assert torch.equal(model(x, **more), plain(x, **more))
    assert kernel_calls(made) >= 5
    with pytest.raises(TypeError, match="positional"):
        model(x, x)


class Packed(nn.Linear):
    """Looks like a Linear; holds two 4-bit numbers a byte, [N*K/2, 1], as quantised layers do."""

    def __init__(self, full: nn.Linear) -> None:
        super().__init__(full.in_features, full.out_features)
        self.scale = float(full.weight.abs().max()) / 7
        signed = (full.weight / self.scale).round().clamp(-8, 7).to(torch.int8) + 8
        pairs = signed.flatten().to(torch.uint8).view(-1, 2)
        self.weight = nn.Parameter((pairs[:, :1] | pairs[:, 1:] << 4), requires_grad=False)
        self.bias = full.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat([self.weight & 15, self.weight >> 4], 1).to(x.dtype) - 8
        full = both.view(self.out_features, self.in_features) * self.scale
        return nn.functional.linear(x, full, self.bias)


@WAYS
def test_a55_a_linear_of_packed_bytes_runs_as_it_is_beside_kernels_for_plain_ones(way: Way, save_run: SaveRun) -> None:
    model, x = net(), batch()
    winners = winners_of(model.forward, x)
    model.blocks[1].gate = Packed(model.blocks[1].gate)
    plain = copy.deepcopy(model)
    made = hotswap.patch(model, save_run(winners), way=way)
    assert torch.equal(model(x), plain(x))
    assert torch.equal(model(batch(4)), plain(batch(4)))
    assert kernel_calls(made)


@WAYS
def test_parametrized_layers_are_read_through_their_parametrization(way: Way, patched: Patched) -> None:
    model, x = net(), batch()
    nn.utils.parametrizations.weight_norm(model.blocks[0].gate)
    nn.utils.parametrize.register_parametrization(model.blocks[0].norm, "weight", nn.Softplus())
    plain = copy.deepcopy(model)
    made = patched(model, x, way=way)
    assert torch.equal(model(x), plain(x))
    for each in (model, plain):
        each.get_parameter("blocks.0.norm.parametrizations.weight.original").mul_(3)
        each.get_parameter("blocks.0.gate.parametrizations.weight.original0").mul_(0.5)
    assert torch.equal(model(x), plain(x))
    assert kernel_calls(made)
    hotswap.unpatch(model)
    assert torch.equal(copy.deepcopy(model)(x), plain(x))


FOO = """
import torch
from torch import nn


class FooConfig:
    model_type = "foo-nobody-has-heard-of"


class FooModel(nn.Module):
    config_class = FooConfig

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)

    def forward(self, tokens, *, bias=None):
        h = torch.tanh(self.mix(tokens)) * 2 + tokens
        return {"h": h if bias is None else h + bias, "nothing": None}
"""


def foo_model(folder: Path, name: str, *, known: bool) -> Any:
    """Return a model whose class stands in a file on no path. known: whether its module is in sys.modules."""
    path = folder / "modeling_foo.py"
    path.write_text(FOO)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if known:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    return module.FooModel().eval()


@pytest.fixture
def foo(tmp_path: Path) -> Iterator[Any]:
    yield foo_model(tmp_path, "foo_on_no_path", known=True)
    del sys.modules["foo_on_no_path"]


def test_a56_a_class_on_no_path_is_patched_and_exported(foo: Any, save_run: SaveRun, tmp_path: Path) -> None:
    x = torch.randn(3, 16)
    want = foo(x)["h"]
    winners = winners_of(foo.forward, x)
    with hotswap.patched(foo, save_run(winners)) as made:
        assert torch.equal(foo(x)["h"], want)
        assert kernel_calls(made) == 1
    folder = export(tmp_path / "foo_nobody_knows", winners, Made("FooModel"))
    sys.path.insert(0, str(folder.parent))
    try:
        package = importlib.import_module(folder.name)
        package.patch(foo)
        assert torch.equal(foo(x)["h"], want)
        assert package.engagement(foo)[0].kernel_calls == 1
        package.unpatch(foo)
    finally:
        sys.path.remove(str(folder.parent))


@WAYS
def test_a56_a_class_whose_module_even_torch_cannot_find_runs_as_it_is_and_says_why(
    way: Way, foo: Any, save_run: SaveRun, tmp_path: Path
) -> None:
    x = torch.randn(3, 16)
    # Torch remembers the modules it has found, so each way has a name of its own.
    model = foo_model(tmp_path, f"foo_unknown_{way}", known=False)
    made = hotswap.patch(model, save_run(winners_of(foo.forward, x)), way=way)
    with pytest.warns(UserWarning, match=f"Dynamo cannot follow it: .*No module named 'foo_unknown_{way}'"):
        assert torch.equal(model(x)["h"], foo(x)["h"])
    assert torch.equal(model(x, bias=x)["h"], foo(x, bias=x)["h"])
    assert kernel_calls(made) == 0


def verified_up_to(winner: Winner, size: int) -> Winner:
    """Return the winner with a domain of lengths up to `size` only."""
    assert winner.domain is not None
    places = tuple((i, 1) for i, spec in enumerate(winner.domain.inputs) if spec.rank == 3)
    domain: Domain = dataclasses.replace(winner.domain, symbols=(places,), sizes=((1, size),))
    return dataclasses.replace(winner, domain=domain)


@WAYS
def test_a62_a_shape_or_dtype_never_verified_runs_the_original_ops_and_is_counted(way: Way, save_run: SaveRun) -> None:
    model, plain = net().bfloat16(), net().bfloat16()
    x = batch(64).bfloat16()
    winners = [verified_up_to(w, 64) for w in winners_of(model.forward, x)]
    made = hotswap.patch(model, save_run(winners), way=way)
    assert torch.equal(model(x), plain(x))
    ran = kernel_calls(made)
    long = batch(77).bfloat16()
    assert torch.equal(model(long), plain(long))
    assert kernel_calls(made) == ran
    assert fallback_reasons(made) == {"size at input 0 dim 1 not in 1 to 64"}
    model.float()
    plain.float()
    assert torch.equal(model(batch(77)), plain(batch(77)))
    assert kernel_calls(made) == ran
    assert made.unswapped_calls >= 1


@TORCHS_OWN
@WAYS
def test_hooks_of_every_kind_registered_after_the_patch_fire_and_can_change_what_they_see(
    way: Way, patched: Patched
) -> None:
    model, plain, x = net(), net(), batch()
    patched(model, x, way=way)
    model(x)
    for each in (model, plain):
        norm, gate = each.blocks[0].norm, each.blocks[1].gate
        norm.register_forward_hook(lambda _m, _i, out: out * 2)
        norm.register_forward_pre_hook(lambda _m, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True)
        gate.register_forward_hook(lambda _m, _i, _k, out: out - 1, with_kwargs=True)
        each.register_forward_hook(lambda _m, _i, out: out * 0.5)
    assert torch.equal(model(x), plain(x))
    seen: list[int] = []
    with torch.enable_grad():
        for each in (model, plain):
            each.blocks[1].norm.register_full_backward_hook(lambda *_, each=each: seen.append(each is model))
            each(x).sum().backward()
    assert seen == [True, False]


@WAYS
def test_a_hook_for_all_modules_of_the_process_fires(way: Way, patched: Patched) -> None:
    model, x = net(), batch()
    patched(model, x, way=way)
    model(x)
    seen: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(type(m).__name__))
    try:
        model(x)
        with_hook = list(seen)
        seen.clear()
        net()(x)
    finally:
        handle.remove()
    assert with_hook == seen


@WAYS
def test_forward_and_submodules_called_directly_answer_as_they_did(way: Way, patched: Patched) -> None:
    model, plain, x = net(), net(), batch()
    made = patched(model, x, way=way)
    assert torch.equal(model.forward(x), plain.forward(x))
    assert kernel_calls(made)
    for name in ("blocks.0", "blocks.1.norm", "blocks.0.gate"):
        one, other = model.get_submodule(name), plain.get_submodule(name)
        assert torch.equal(one(x), other(x))
        assert torch.equal(one.forward(x), other.forward(x))
    assert torch.equal(nn.Sequential(*model.blocks)(x), nn.Sequential(*plain.blocks)(x))


@pytest.fixture(scope="module")
def prompt() -> torch.Tensor:
    return torch.randint(1, 128, (2, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_with_either_cache_gives_the_same_tokens_and_runs_kernels(
    cache: str, prompt: torch.Tensor, save_run: SaveRun
) -> None:
    llama = tiny_llama()
    how: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": cache}
    if cache == "dynamic":
        del how["cache_implementation"]
    want = llama.generate(prompt, **how)
    made = hotswap.patch(llama, save_run(winners_of(llama.forward, input_ids=prompt)))
    assert torch.equal(llama.generate(prompt, **how), want)
    assert kernel_calls(made) >= 12 * 3
    compiles = made.compiles
    assert torch.equal(llama.generate(prompt, **how), want)
    assert made.compiles == compiles


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_are_right_though_tuned_on_a_mask_of_ones(
    side: str, prompt: torch.Tensor, save_run: SaveRun
) -> None:
    llama, plain = tiny_llama(), tiny_llama()
    ones = torch.ones_like(prompt)
    made = hotswap.patch(llama, save_run(winners_of(llama.forward, input_ids=prompt, attention_mask=ones)))
    assert torch.equal(llama(input_ids=prompt, attention_mask=ones).logits, plain(prompt, attention_mask=ones).logits)
    ran = kernel_calls(made)
    mask = ones.clone()
    mask[1, :4] = 0 if side == "left" else 1
    mask[1, 5:] = 0 if side == "right" else 1
    got, want = (m(input_ids=prompt, attention_mask=mask).logits for m in (llama, plain))
    assert torch.equal(got, want)
    assert kernel_calls(made) > ran
    assert not torch.allclose(want, plain(input_ids=prompt, attention_mask=ones).logits)
    # What the mask hides makes no difference.
    other = prompt.clone()
    other[1, mask[1] == 0] = 77
    again = llama(input_ids=other, attention_mask=mask).logits
    torch.testing.assert_close(again[1, mask[1] == 1], want[1, mask[1] == 1], rtol=0, atol=1e-6)
