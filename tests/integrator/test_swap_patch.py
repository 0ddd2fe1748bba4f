from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import io
import pickle
import shutil
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import hotswap
from hotswap.integrator.patch import Patch, patch_of
from hotswap.models.errors import RecordError, SpecError, VerificationFailed
from hotswap.optimizer.winner import Winner

MakeWinners = Callable[..., list[Winner]]
WriteRun = Callable[[list[Winner]], Path]


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.eps = 1e-5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = Norm(width)
        self.up = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self, width: int = 32, *, checkpointed: bool | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, width, bias=False)
        self.tied = nn.Linear(width, width, bias=False)
        self.tied.weight = self.head.weight
        self.reentrant = checkpointed

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return {"out": self.head(x) * scale, "tied": self.tied(x)}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def run(net: Net, x: torch.Tensor, make_winners: MakeWinners, write_run: WriteRun) -> Path:
    return write_run(make_winners(net.forward, x))


def calls(made: Patch) -> int:
    return sum(e.kernel_calls for e in made.engagement())


def reasons(made: Patch) -> set[str]:
    return {reason for e in made.engagement() for reason in e.fallback_reasons}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        # The hand-made kernels are the same ops in the same order.
        torch.testing.assert_close(a[key], b[key], rtol=0, atol=0)


def test_a_model_built_before_the_patch_runs_the_kernels_and_gives_the_same_outputs(
    net: Net, x: torch.Tensor, run: Path
) -> None:
    with torch.no_grad():
        want = net(x)
        made = hotswap.patch(net, run)
        same(net(x), want)
        same(net.forward(x), want)
    assert made.engagement()
    assert all(e.sites for e in made.engagement())
    assert calls(made) == 2 * sum(e.sites for e in made.engagement())
    assert not reasons(made)
    made.require_engaged()


def test_unpatch_leaves_the_instance_exactly_as_it_was(net: Net, x: torch.Tensor, run: Path) -> None:
    before = list(net.__dict__.items())
    hotswap.patch(net, run)
    with torch.no_grad():
        net(x)
    hotswap.unpatch(net)
    after = list(net.__dict__.items())
    assert [k for k, _ in after] == [k for k, _ in before]
    assert all(a is b for (_, a), (_, b) in zip(after, before, strict=True))
    assert "forward" not in net.__dict__


def test_a_forward_somebody_else_put_on_the_instance_is_called_and_comes_back(
    net: Net, x: torch.Tensor, run: Path
) -> None:
    def doubled(self: Net, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {k: v * 2 for k, v in Net.forward(self, x).items()}

    theirs = types.MethodType(doubled, net)
    net.forward = theirs  # type: ignore[method-assign]
    with torch.no_grad():
        want = net(x)
        with hotswap.patched(net, run):
            same(net(x), want)
    assert net.__dict__["forward"] is theirs


def test_keys_type_signature_and_parameters_do_not_change(net: Net, x: torch.Tensor, run: Path) -> None:
    keys, names = list(net.state_dict()), [n for n, _ in net.named_parameters()]
    signature = inspect.signature(net.forward)
    hotswap.patch(net, run)
    with torch.no_grad():
        want = net(x)
    assert list(net.state_dict()) == keys
    assert [n for n, _ in net.named_parameters()] == names
    assert type(net) is Net
    assert inspect.signature(net.forward) == signature
    other = Net().eval()
    other.load_state_dict(net.state_dict())
    net.load_state_dict(other.state_dict())
    with torch.no_grad():
        same(other(x), want)
        same(net(x), want)


def test_tied_weights_stay_one_storage(net: Net, x: torch.Tensor, run: Path) -> None:
    hotswap.patch(net, run)
    with torch.no_grad():
        net(x)
    assert net.head.weight is net.tied.weight
    with torch.no_grad():
        net.head.weight.mul_(2)
        same(net(x), copy.deepcopy(net)(x))


def test_other_instances_the_class_and_submodules_are_untouched(net: Net, x: torch.Tensor, run: Path) -> None:
    teacher = Net().eval()
    forward, block = Net.forward, net.blocks[0].__dict__.copy()
    with torch.no_grad():
        want = teacher(x)
        made = hotswap.patch(net, run)
        net(x)
        ran = calls(made)
        same(teacher(x), want)
        net.blocks[0](x)
    assert calls(made) == ran
    assert Net.forward is forward
    assert "forward" not in teacher.__dict__
    assert net.blocks[0].__dict__ == block


def test_two_patched_models_count_apart(net: Net, x: torch.Tensor, run: Path) -> None:
    other = Net().eval()
    mine, theirs = hotswap.patch(net, run), hotswap.patch(other, run)
    with torch.no_grad():
        net(x)
    assert calls(mine)
    assert not calls(theirs)


def test_copies_and_pickles_of_a_patched_model_are_the_unpatched_model(net: Net, x: torch.Tensor, run: Path) -> None:
    hotswap.patch(net, run)
    with torch.no_grad():
        want = net(x)
        saved = io.BytesIO()
        torch.save(net, saved)
        saved.seek(0)
        for copied in (
            copy.deepcopy(net),
            pickle.loads(pickle.dumps(net)),
            torch.load(saved, weights_only=False),
            copy.deepcopy(nn.Sequential(net))[0],
        ):
            assert patch_of(copied) is None
            assert set(copied.__dict__) == set(Net().__dict__)
            same(copied(x), want)
    assert patch_of(net) is not None


def test_a_model_that_cannot_be_deepcopied_is_patched_all_the_same(
    x: torch.Tensor, make_winners: MakeWinners, write_run: WriteRun
) -> None:
    net = Net().eval()
    net.cache = net.head.weight * 2  # a non-leaf: deepcopy raises on it
    with pytest.raises(RuntimeError):
        copy.deepcopy(net)
    run = write_run(make_winners(net.forward, x))
    with torch.no_grad(), hotswap.patched(net, run) as made:
        net(x)
    assert calls(made)


def test_patching_twice_and_unpatching_the_unpatched_are_refused(net: Net, run: Path) -> None:
    with pytest.raises(SpecError, match="not patched"):
        hotswap.unpatch(net)
    hotswap.patch(net, run)
    with pytest.raises(SpecError, match="already patched"):
        hotswap.patch(net, run)
    hotswap.unpatch(net)
    hotswap.patch(net, run)


def test_the_context_takes_the_patch_out_when_the_body_raises(net: Net, run: Path) -> None:
    with pytest.raises(ZeroDivisionError), hotswap.patched(net, run):
        raise ZeroDivisionError
    assert patch_of(net) is None


def test_what_cannot_be_patched_is_refused_with_what_to_do(net: Net, run: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"wrapped by torch\.compile"):
        hotswap.patch(torch.compile(net, backend="eager"), run)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="meta device"):
        hotswap.patch(Net().to("meta"), run)
    with pytest.raises(SpecError, match="not a directory"):
        hotswap.patch(net, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match="no winners"):
        hotswap.patch(net, tmp_path / "empty")
    with pytest.raises(SpecError, match="expected one of eager, planned, cudagraph, inductor"):
        hotswap.patch(net, run, tail="fast")  # type: ignore[arg-type]
    assert patch_of(net) is None


def test_a_run_in_which_nothing_won_is_refused(
    net: Net, x: torch.Tensor, make_winners: MakeWinners, write_run: WriteRun
) -> None:
    left = [dataclasses.replace(w, choice="leave", source=None) for w in make_winners(net.forward, x)]
    with pytest.raises(SpecError, match="nothing to patch in"):
        hotswap.patch(net, write_run(left))


def test_a_patch_that_finds_none_of_its_regions_says_so_once(x: torch.Tensor, run: Path) -> None:
    stranger = nn.Sequential(nn.Linear(32, 32), nn.Tanh()).eval()
    made = hotswap.patch(stranger, run)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="none of its .* regions is one the run has a kernel for"):
            stranger(x)
        stranger(x)
    with pytest.raises(VerificationFailed, match="patched, but none"):
        made.require_engaged()


def test_a_kernel_on_a_branch_not_taken_is_shown_as_not_engaged(make_winners: MakeWinners, write_run: WriteRun) -> None:
    class Fork(nn.Module):
        def forward(self, x: torch.Tensor, rare: bool) -> torch.Tensor:
            return torch.tanh(x.exp() + 1) if rare else x + x.sin()

    fork = Fork()
    x = torch.randn(4, 8)
    rare = make_winners(fork.forward, x, True)
    made = hotswap.patch(fork, write_run([*rare, *make_winners(fork.forward, x, False)]))
    with torch.no_grad():
        fork(x, False)
    by_task = {e.task: e for e in made.engagement()}
    assert by_task[rare[0].task].kernel_calls == 0
    assert by_task[rare[0].task].sites == 0
    assert calls(made) == 1


def test_gradients_flow_through_the_original_ops_and_are_counted(net: Net, x: torch.Tensor, run: Path) -> None:
    net.train()
    want_loss = sum(v.square().mean() for v in net(x).values())
    want = torch.autograd.grad(want_loss, list(net.parameters()))
    made = hotswap.patch(net, run)
    loss = sum(v.square().mean() for v in net(x).values())
    got = torch.autograd.grad(loss, list(net.parameters()))
    assert torch.equal(loss, want_loss)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert reasons(made) == {"an input requires grad"}
    with torch.no_grad():
        net(x)
    assert calls(made)


# All regions of this net lie inside its checkpointed blocks, whose graphs Dynamo keeps apart and we leave alone.
@pytest.mark.filterwarnings("ignore:hotswap. Net is patched, but none of its")
@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(
    reentrant: bool, x: torch.Tensor, make_winners: MakeWinners, write_run: WriteRun
) -> None:
    net, plain = Net(checkpointed=reentrant), Net()
    plain.load_state_dict(net.state_dict())
    run = write_run(make_winners(plain.forward, x))
    made = hotswap.patch(net, run)
    sum(v.square().mean() for v in net(x).values()).backward()
    sum(v.square().mean() for v in plain(x).values()).backward()
    assert made.compiles
    for (name, mine), (_, theirs) in zip(net.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=0, atol=0, msg=name)


def test_under_autocast_outputs_have_the_dtype_eager_gives(net: Net, x: torch.Tensor, run: Path) -> None:
    made = hotswap.patch(net, run)
    plain = copy.deepcopy(net)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        same(net(x), plain(x))
    assert not calls(made)
    assert reasons(made) == {"autocast is on"}
    # That the first call was under autocast keeps no kernel out of later ones.
    with torch.no_grad():
        same(net(x), plain(x))
    assert calls(made)


def test_autocast_inside_the_model_is_respected(make_winners: MakeWinners, write_run: WriteRun) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = Norm(32)
            self.up = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                y = self.norm(self.up(self.norm(self.up(x))))
            return self.norm(x) + y  # type: ignore[no-any-return]

    mixed, x = Mixed().eval(), torch.randn(3, 32)
    with torch.no_grad():
        want = mixed(x)
        made = hotswap.patch(mixed, write_run(make_winners(mixed.forward, x)))
        torch.testing.assert_close(mixed(x), want, rtol=0, atol=0)
        assert not torch.is_autocast_enabled("cpu")
    # What lies on both sides of the switch cannot become one moment.
    assert {w.reason for g in made.swaps for w in g.left} == {"_exit_autocast stands between its ops"}
    assert "autocast is on" in reasons(made)


def test_a_dtype_or_size_never_verified_is_answered_by_the_original_ops_and_counted(
    net: Net, x: torch.Tensor, make_winners: MakeWinners, write_run: WriteRun
) -> None:
    winners = make_winners(net.forward, x)
    narrow = []
    for w in winners:
        assert w.domain is not None
        activations = tuple((i, 1) for i, spec in enumerate(w.domain.inputs) if spec.rank == 3)
        narrow.append(
            dataclasses.replace(w, domain=dataclasses.replace(w.domain, symbols=(activations,), sizes=((1, 12),)))
        )
    made = hotswap.patch(net, write_run(narrow))
    plain = copy.deepcopy(net)
    long = torch.randn(2, 40, 32)
    with torch.no_grad():
        same(net(x), plain(x))
        inside = calls(made)
        same(net(long), plain(long))
        assert calls(made) == inside
        assert reasons(made) == {"size at input 0 dim 1 not in 1 to 12"}
        # Another dtype is another fingerprint: the graph keeps its ops. (A matmul in fp64 may round by its alignment.)
        torch.testing.assert_close(net.double()(x.double()), plain.double()(x.double()), rtol=1e-12, atol=1e-12)
        assert calls(made) == inside


def test_sixteen_lengths_compile_a_few_times_and_run_the_kernels_at_each(net: Net, run: Path) -> None:
    made = hotswap.patch(net, run)
    plain = copy.deepcopy(net)
    with torch.no_grad():
        for length in range(103, 119):
            x = torch.randn(2, length, 32)
            torch.testing.assert_close(net(x)["out"], plain(x)["out"], rtol=0, atol=0)
    assert made.compiles <= 2
    assert calls(made) == 16 * sum(e.sites for e in made.engagement())
    assert not reasons(made)


def test_a_float_argument_that_changes_at_each_call_does_not_compile_at_each(
    net: Net, x: torch.Tensor, run: Path
) -> None:
    made = hotswap.patch(net, run)
    plain = copy.deepcopy(net)
    with torch.no_grad():
        net(x)
        ran = calls(made)
        for step in range(12):
            same(net(x, scale=1.5 + step), plain(x, scale=1.5 + step))
    assert made.compiles <= 3
    # Only the product with the float lost its kernel: Dynamo made it an input.
    assert calls(made) >= 12 * (ran - 1)


def test_dims_marked_dynamic_compile_once(net: Net, run: Path) -> None:
    made = hotswap.patch(net, run)
    with torch.no_grad():
        for length in (7, 8, 30):
            x = torch.randn(2, length, 32)
            torch._dynamo.mark_dynamic(x, 1)
            net(x)
    assert made.compiles == 1
    assert calls(made) == 3 * sum(e.sites for e in made.engagement())


def test_many_patched_models_of_one_class_all_run_their_kernels(run: Path, x: torch.Tensor) -> None:
    # Dynamo counts recompiles by code object, and a class's instances share their forward's: the limit is 8.
    for _ in range(10):
        net = Net().eval()
        with torch.no_grad(), hotswap.patched(net, run) as made:
            net(x)
            assert calls(made)


def test_a_hook_added_after_the_first_call_fires(net: Net, x: torch.Tensor, run: Path) -> None:
    made = hotswap.patch(net, run)
    with torch.no_grad():
        want = net(x)["out"]
        seen: list[str] = []
        inner = net.get_submodule("blocks.1.norm").register_forward_hook(lambda *_: seen.append("inner"))
        outer = net.register_forward_hook(lambda *_: seen.append("outer"))
        same_out = net(x)["out"]
        assert seen == ["inner", "outer"]
        inner.remove()
        outer.remove()
        net(x)
        assert seen == ["inner", "outer"]
        changed = net.get_submodule("blocks.0.norm").register_forward_hook(lambda _m, _i, out: out * 3)
        assert not torch.allclose(net(x)["out"], want)
        changed.remove()
        same({"out": net(x)["out"]}, {"out": want})
    torch.testing.assert_close(same_out, want, rtol=0, atol=0)
    assert calls(made)


def test_a_region_reaching_across_a_hooked_module_keeps_its_ops(
    x: torch.Tensor, make_winners: MakeWinners, write_run: WriteRun
) -> None:
    class Tail(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = Norm(32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.norm(x))

    tail = Tail().eval()
    run = write_run(make_winners(tail.forward, x))
    seen: list[torch.Size] = []
    tail.norm.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0].shape))
    with torch.no_grad():
        made = hotswap.patch(tail, run)
        with pytest.warns(UserWarning, match="a module with hooks ends inside it"):
            tail(x)
    assert seen == [x.shape]
    assert not calls(made)


def test_an_outer_compile_works_on_a_patched_model_and_is_told_once(net: Net, x: torch.Tensor, run: Path) -> None:
    hotswap.patch(net, run)
    plain = copy.deepcopy(net)
    outer = torch.compile(net, fullgraph=True, backend="aot_eager")
    with pytest.warns(UserWarning, match="backend='hotswap'"):
        got = outer(x)
    want = plain(x)
    for key in want:
        # aot_eager decomposes: the same sums in another order, over 32 terms.
        torch.testing.assert_close(got[key], want[key])
    parameters, copies = list(net.parameters()), list(plain.parameters())
    for a, b in zip(
        torch.autograd.grad(got["out"].sum(), parameters),
        torch.autograd.grad(want["out"].sum(), copies),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    outer(torch.randn(3, 5, 32))  # compiles again, says nothing again: warnings are errors here


def test_a_swap_switched_off_runs_the_original_ops_and_on_again_the_kernel(
    net: Net, x: torch.Tensor, run: Path
) -> None:
    made = hotswap.patch(net, run)
    first = made.winners[0]
    with torch.no_grad():
        want = net(x)
        before = {e.task: e.kernel_calls for e in made.engagement()}
        made.enable(first.fingerprint, False)
        same(net(x), want)
        off = {e.task: e.kernel_calls for e in made.engagement()}
        compiles = made.compiles
        made.enable(first.fingerprint, True)
        same(net(x), want)
        made.enable(first.fingerprint, False)
        net(x)
    assert off[first.task] == before[first.task]
    assert all(off[t] == 2 * before[t] for t in off if t != first.task)
    assert made.compiles == compiles == 1
    with pytest.raises(SpecError, match="not in this patch"):
        made.enable("nothing", False)


def test_calls_pass_keyword_arguments_through(net: Net, x: torch.Tensor, run: Path) -> None:
    plain = copy.deepcopy(net)
    hotswap.patch(net, run)
    with torch.no_grad():
        same(net(x, scale=2.5), plain(x, scale=2.5))
        same(net(x=x, scale=0.5), plain(x=x, scale=0.5))
        with pytest.raises(TypeError, match="unknown"):
            net(x, unknown=1)


def test_a_patched_model_works_in_inference_mode(net: Net, x: torch.Tensor, run: Path) -> None:
    made = hotswap.patch(net, run)
    with torch.inference_mode():
        want: Any = copy.deepcopy(net)(x)
        same(net(x), want)
    assert calls(made)


def test_an_unpatched_model_and_its_patch_can_be_freed(x: torch.Tensor, run: Path) -> None:
    net = Net().eval()
    made = hotswap.patch(net, run)
    with torch.no_grad():
        net(x)
    hotswap.unpatch(net)
    gone = weakref.ref(net), weakref.ref(made)
    del net, made
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


NATIVE = '''
import ctypes

import torch
from hotswap.optimizer.native import compile_cpp

SOURCE = """
#include <cmath>
extern "C" void silu_mul(const float* a, const float* b, float* out, long n) {
    for (long i = 0; i < n; ++i) out[i] = a[i] / (1.0f + std::exp(-a[i])) * b[i];
}
"""
CONSTRAINTS = {"contiguous": ["a", "b"]}
run = compile_cpp(SOURCE).silu_mul
run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long]
run.restype = None


def kernel(a, b):
    out = torch.empty_like(a)
    run(a.data_ptr(), b.data_ptr(), out.data_ptr(), a.numel())
    return out
'''


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_kernel_in_cpp_runs_in_the_model(
    net: Net, x: torch.Tensor, make_winners: MakeWinners, write_run: WriteRun
) -> None:
    (silu,) = (w for w in make_winners(net.forward, x) if w.task.startswith("silu-mul"))
    made = hotswap.patch(net, write_run([dataclasses.replace(silu, source=NATIVE)]))
    plain = copy.deepcopy(net)
    with torch.no_grad():
        got, want = net(x), plain(x)
    # One exponential, one division and one product a value, then a matmul over 32 terms: a few ulp.
    torch.testing.assert_close(got["out"], want["out"], rtol=1e-5, atol=1e-5)
    assert calls(made) == 2
    assert not reasons(made)
