"""The module way: modules whose whole forward is a won region, each with a forward of its own, all else plain eager."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import hotswap
from hotswap.integrator import in_place
from hotswap.integrator.patch import Patch, patch_of
from hotswap.models.errors import SpecError, VerificationFailed
from hotswap.optimizer.winner import Winner

MakeWinners = Callable[..., list[Winner]]
WriteRun = Callable[[list[Winner]], Path]


class Norm(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.eps = 1e-5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Net(nn.Module):
    """Two norms between linears; Dynamo cannot capture it whole, because it prints what it looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []
        self.up = nn.Linear(32, 32)
        self.norm = Norm()
        self.act = nn.Sequential(nn.GELU(), Norm())
        self.down = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.up(x))
        self.seen.append(h.sum().item())
        return x + self.down(self.act(functional.linear(h, self.up.weight)))  # type: ignore[no-any-return]


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def run(net: Net, make_winners: MakeWinners, write_run: WriteRun) -> Path:
    """Winners for a norm alone and for gelu with a norm behind it."""
    with torch.no_grad():
        x = torch.randn(2, 9, 32)
        return write_run([*make_winners(net.norm.forward, x), *make_winners(net.act.forward, x)])


def calls(made: Patch) -> list[int]:
    return [e.kernel_calls for e in made.engagement()]


def test_modules_that_are_a_region_run_its_kernel_from_the_first_call_on(net: Net, x: torch.Tensor, run: Path) -> None:
    with torch.no_grad():
        want = net(x)
        made = hotswap.patch(net, run, way="module")
        for step in (1, 2, 3):
            assert torch.equal(net(x), want)
            assert calls(made) == [step, step]
    made.require_engaged()
    # Only those two still have a forward of ours; linears and the inner modules were never one of the run's regions.
    ours = [name for name, module in net.named_modules() if name and "forward" in module.__dict__]
    assert ours == ["norm", "act", "act.0", "act.1"]
    assert sum(e.sites for e in made.engagement()) == 2


def test_the_model_stays_plain_eager_around_its_kernels(net: Net, x: torch.Tensor, run: Path) -> None:
    hotswap.patch(net, run, way="module")
    stacks: list[bool] = []
    net.down.register_forward_pre_hook(lambda *_: stacks.append(torch.compiler.is_compiling()))
    with torch.no_grad():
        net(x)
        net(x)
    assert stacks == [False, False]
    assert len(net.seen) == 2
    assert net.seen[0] == net.seen[1]


def test_a_patched_submodule_called_directly_runs_its_kernel(net: Net, x: torch.Tensor, run: Path) -> None:
    made = hotswap.patch(net, run, way="module")
    with torch.no_grad():
        assert torch.equal(net.norm(x), Norm.forward(net.norm, x))
        assert torch.equal(net.norm.forward(x=x), Norm.forward(net.norm, x))
    assert calls(made) == [2, 0]


def test_unpatch_leaves_every_module_exactly_as_it_was(net: Net, x: torch.Tensor, run: Path) -> None:
    before = [list(module.__dict__.items()) for module in net.modules()]
    hotswap.patch(net, run, way="module")
    with torch.no_grad():
        net(x)
    hotswap.unpatch(net)
    after = [list(module.__dict__.items()) for module in net.modules()]
    for then, now in zip(before, after, strict=True):
        assert [k for k, _ in now] == [k for k, _ in then]
        assert all(a is b for (_, a), (_, b) in zip(now, then, strict=True))


def test_copies_pickles_and_other_instances_are_unpatched(net: Net, x: torch.Tensor, run: Path) -> None:
    other = Net().eval()
    made = hotswap.patch(net, run, way="module")
    with torch.no_grad():
        want = net(x)
        for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert patch_of(copied) is None
            assert not any("forward" in m.__dict__ for m in copied.modules())
            assert torch.equal(copied(x), want)
        assert "forward" not in copy.deepcopy(net.norm).__dict__
        ran = calls(made)
        other(x)
    assert calls(made) == ran
    assert list(net.state_dict()) == list(other.state_dict())


def test_training_runs_the_original_ops_uncompiled_and_counts_them(net: Net, x: torch.Tensor, run: Path) -> None:
    want = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    made = hotswap.patch(net, run, way="module")
    for first in (True, False):
        got = torch.autograd.grad(net(x).sum(), list(net.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
        if first:
            assert made.compiles == 0
            with torch.no_grad():
                net(x)
            compiles = made.compiles
    assert made.compiles == compiles
    assert calls(made) == [1, 1]
    assert [e.fallback_reasons for e in made.engagement()] == [{"an input requires grad": 1}] * 2


def test_an_attribute_changed_after_the_patch_is_followed(net: Net, x: torch.Tensor, run: Path) -> None:
    made = hotswap.patch(net, run, way="module")
    with torch.no_grad():
        net(x)
        net.norm.eps = 0.5
        plain = copy.deepcopy(net)
        # Another eps is another region, of which nothing is known.
        assert torch.equal(net(x), plain(x))
    assert calls(made) == [1, 2]


def test_a_hook_on_a_module_inside_a_swapped_one_fires(net: Net, x: torch.Tensor, run: Path) -> None:
    made = hotswap.patch(net, run, way="module")
    with torch.no_grad():
        want = net(x)
        seen: list[int] = []
        inner = net.act[0].register_forward_hook(lambda *_: seen.append(0))
        outer = net.act.register_forward_hook(lambda *_: seen.append(1))
        assert torch.equal(net(x), want)
        assert seen == [0, 1]
        inner.remove()
        ran = calls(made)
        net(x)
        assert seen == [0, 1, 1]
        outer.remove()
    assert calls(made)[1] == ran[1] + 1


def test_an_outer_compile_sees_the_original_ops_and_says_so(
    net: Net, x: torch.Tensor, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "_inlined", set())  # it is said once a class

    class Outer(Net):
        pass

    outer = Outer().eval()
    made = hotswap.patch(outer, run, way="module")
    with torch.no_grad():
        with pytest.warns(UserWarning, match="Outer is patched, but an outer"):
            got = torch.compile(outer, backend="eager")(x)
        assert torch.equal(got, copy.deepcopy(outer)(x))
    assert calls(made) == [0, 0]


def test_sixteen_lengths_compile_a_few_times(net: Net, run: Path) -> None:
    made = hotswap.patch(net, run, way="module")
    plain = copy.deepcopy(net)
    with torch.no_grad():
        net(torch.randn(2, 4, 32))
        asked = made.compiles
        for length in range(103, 119):
            x = torch.randn(2, length, 32)
            assert torch.equal(net(x), plain(x))
    # Each of the two once more, with its length as a symbol.
    assert made.compiles <= asked + 2
    assert calls(made) == [17, 17]


def test_modules_on_the_meta_device_or_replaced_by_somebody_are_left_alone_and_said(
    net: Net, x: torch.Tensor, run: Path
) -> None:
    theirs = net.norm.forward
    net.norm.forward = lambda x: theirs(x) * 2  # type: ignore[method-assign]
    with torch.no_grad():
        want = net(x)
        made = hotswap.patch(net, run, way="module")
        assert torch.equal(net(x), want)
    assert calls(made) == [0, 1]
    assert [(left.place, left.reason) for g in made.swaps for left in g.left] == [
        ("norm", "somebody else has replaced its forward (an offload hook?)")
    ]
    hotswap.unpatch(net)
    net.norm.to("meta")
    del net.norm.forward
    made = hotswap.patch(net, run, way="module")
    assert [left.reason for g in made.swaps for left in g.left] == ["its weights are on the meta device (offloaded?)"]


def test_a_model_without_such_modules_is_told_once(x: torch.Tensor, run: Path) -> None:
    stranger = nn.Sequential(nn.Linear(32, 32), nn.Tanh()).eval()
    made = hotswap.patch(stranger, run, way="module")
    with torch.no_grad():
        with pytest.warns(UserWarning, match="Sequential is patched, but none of its"):
            stranger(x)
        stranger(x)
    assert not any("forward" in m.__dict__ for m in stranger)
    with pytest.raises(VerificationFailed, match="patched, but none"):
        made.require_engaged()


def test_a_root_that_is_a_region_itself_is_swapped(x: torch.Tensor, run: Path) -> None:
    norm = Norm().eval()
    with torch.no_grad(), hotswap.patched(norm, run, way="module") as made:
        assert torch.equal(norm(x), Norm.forward(norm, x))
        assert calls(made) == [1, 0]
        made.enable(made.winners[0].fingerprint, False)
        norm(x)
        assert calls(made) == [1, 0]
    assert "forward" not in norm.__dict__


def test_an_unknown_way_and_a_tail_it_cannot_have_are_refused(net: Net, run: Path) -> None:
    with pytest.raises(SpecError, match="expected one of graph, module"):
        hotswap.patch(net, run, way="class")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="plain eager"):
        hotswap.patch(net, run, way="module", tail="inductor")
    assert patch_of(net) is None
