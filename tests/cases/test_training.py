"""Gradients, modes and precision of a patched model that trains (A21, A50 to A53)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_models import Net, batch, net
from stand_ins import fallback_reasons, kernel_calls, winners_of, with_source
from torch import nn
from torch.nn import functional

import hotswap
from hotswap.integrator.patch import Patch, Way
from hotswap.integrator.verify import verify
from hotswap.models.workload import Call
from hotswap.optimizer.winner import Winner

Patched = Callable[..., Patch]
SaveRun = Callable[[list[Winner]], Path]

# What torch hides from users reaches those who make errors of warnings: a compile looks at .grad of what it is given.
TORCHS_OWN = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
WAYS = pytest.mark.parametrize("way", ["graph", "module"])


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss = model(x).float().square().mean()
    loss.backward()
    return [loss, *[p.grad for p in model.parameters() if p.grad is not None]]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.drop = nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.drop(functional.gelu(self.net(x)))) + 1


@WAYS
def test_a21_dropout_draws_as_in_eager_and_the_mode_is_the_users(way: Way, patched: Patched) -> None:
    torch.manual_seed(0)
    model, x = Dropping().train(), batch()
    plain = copy.deepcopy(model)
    made = patched(model, x, way=way)
    with torch.no_grad():
        for seed in (1, 2):
            torch.manual_seed(seed)
            got = model(x)
            torch.manual_seed(seed)
            assert torch.equal(got, plain(x))
        assert kernel_calls(made)
        dropped = (got == 1).double().mean().item()
    assert 0.15 < dropped < 0.35
    assert model.training
    assert model.net.blocks[0].training
    model.eval()
    plain.eval()
    assert equal([model(x)], [plain(x)])


def test_a21_verification_leaves_the_mode_and_compares_what_is_not_random(patched: Patched) -> None:
    torch.manual_seed(0)
    model, x = Dropping().train(), batch()
    with torch.no_grad():
        run = patched(model, x)
    hotswap.unpatch(model)
    checks = verify(model, lambda: run.installed(), [Call((x,))], derive=False)
    assert [c.passed for c in checks] == [True], checks[0].detail
    assert model.training


OVERWRITES = """
import torch


def kernel(x, *rest):
    x.copy_(torch.nn.functional.silu(x) * rest[0])
    return x.clone()
"""


def test_a50_a_kernel_that_writes_into_what_it_is_given_is_not_used_and_gradients_are_eagers(save_run: SaveRun) -> None:
    model, x = net(), batch()
    plain = copy.deepcopy(model)
    (activation,) = [w for w in winners_of(model.forward, x) if w.task.startswith("silu")]
    made = hotswap.patch(model, save_run([with_source(activation, OVERWRITES)]))
    with pytest.warns(UserWarning, match="opcheck"):
        assert equal(gradients(model, x), gradients(plain, x))
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    assert kernel_calls(made) == 0


class InPlaceLoss(nn.Module):
    """Softmax, then what a fused cross-entropy does: the gradient overwrites the probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(self.head(x).float(), -1)
        scaled = p * 2 + 1
        with torch.no_grad():
            seen = p.detach().clone()
            seen.sub_(1).mul_(0.5)
        return (scaled * seen).tanh()


def test_a50_writes_of_the_models_own_between_swapped_ops_keep_their_order(patched: Patched) -> None:
    torch.manual_seed(0)
    model, x = InPlaceLoss(), batch()
    plain = copy.deepcopy(model)
    patched(model, x)
    with pytest.warns(UserWarning, match="stands between its ops"):
        assert equal(gradients(model, x), gradients(plain, x))
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))


@WAYS
def test_a51_training_after_a_patch_for_inference_gives_eagers_gradients_and_says_why_no_kernel_ran(
    way: Way, patched: Patched
) -> None:
    model, x = net(), batch()
    plain = copy.deepcopy(model)
    made = patched(model, x, way=way)
    with torch.no_grad():
        model(x)
    ran = kernel_calls(made)
    assert ran
    for each in (model, plain):
        each.train()
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            each(batch(seed=step)).square().mean().backward()
            assert all(p.grad is not None for p in each.parameters())
            optimizer.step()
    assert kernel_calls(made) == ran
    assert fallback_reasons(made) == {"an input requires grad"}
    with torch.no_grad():
        # The steps were taken in place: kernels see the new weights.
        assert torch.equal(model(x), plain(x))
    assert kernel_calls(made) > ran


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch's, of reentrant ones in inference
@TORCHS_OWN
@WAYS
@pytest.mark.parametrize("reentrant", [True, False])
def test_a52_checkpointed_blocks_recompute_to_the_same_gradients(reentrant: bool, way: Way, save_run: SaveRun) -> None:
    model, plain, x = net(checkpointed=reentrant), net(), batch().requires_grad_()
    made = hotswap.patch(model, save_run(winners_of(plain.forward, x)), way=way)
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
        assert kernel_calls(made)
    model.train()
    assert equal(gradients(model, x), gradients(plain, x))
    assert equal(gradients(model, x), gradients(plain, x))


@WAYS
def test_a53_a_step_under_autocast_has_eagers_dtypes_values_and_gradients(way: Way, patched: Patched) -> None:
    model, x = net(), batch()
    plain = copy.deepcopy(model)
    made = patched(model, x, way=way)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = model(x), plain(x)
        assert got.dtype == want.dtype
        assert model.blocks[0].down(x).dtype == torch.bfloat16
        assert equal(gradients(model, x), gradients(plain, x))
        with torch.no_grad():
            assert torch.equal(model(x), plain(x))
    assert kernel_calls(made) == 0
    assert fallback_reasons(made) <= {"autocast is on", "an input requires grad"}
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    assert kernel_calls(made)
