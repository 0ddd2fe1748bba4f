"""Verification, bisection and ablation of a real patch, one of whose kernels is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

import hotswap
from hotswap.integrator.ablate import ablate
from hotswap.integrator.blocks import Pace
from hotswap.integrator.verify import bisect, check, expect, verify
from hotswap.models.workload import Call
from hotswap.optimizer.winner import Winner

MakeWinners = Callable[..., list[Winner]]
WriteRun = Callable[[list[Winner]], Path]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.sigmoid(self.one(x)) * x
        return {"hidden": hidden, "out": torch.tanh(self.two(hidden)) + hidden}


@pytest.fixture
def call() -> Call:
    return Call((torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(1)),))


@pytest.fixture
def winners(call: Call, make_winners: MakeWinners) -> list[Winner]:
    made = make_winners(Net().eval().forward, *call.args)
    assert len(made) == 2
    return made


def test_honest_kernels_pass_on_every_derived_input(call: Call, winners: list[Winner], write_run: WriteRun) -> None:
    model, run = Net().eval(), write_run(winners)
    checks = verify(model, lambda: hotswap.patched(model, run), [call])
    assert len(checks) == 5
    assert all(one.passed for one in checks), checks


def test_bisection_names_the_kernel_that_is_wrong_and_the_rest_is_verified(
    call: Call, winners: list[Winner], write_run: WriteRun
) -> None:
    wrong = next(w for w in winners if "tanh" in str(w.source))
    spoiled = dataclasses.replace(wrong, source=str(wrong.source).replace("torch.tanh", "torch.sin"))
    assert spoiled.source != wrong.source
    model = Net().eval()
    expected = expect(model, [call], derive=False)
    patch = hotswap.patch(model, write_run([spoiled if w is wrong else w for w in winners]))

    def passes() -> bool:
        return all(one.passed for one in check(expected, nullcontext))

    assert not passes()
    found = bisect(patch, passes, [w.fingerprint for w in winners])
    assert found.culprits == (wrong.fingerprint,)
    assert passes()


def test_a_real_patch_is_ablated_by_its_switches(call: Call, winners: list[Winner], write_run: WriteRun) -> None:
    model = Net().eval()
    patch = hotswap.patch(model, write_run(winners))
    seen: set[tuple[int, ...]] = set()

    def step() -> None:
        before = [row.kernel_calls for row in patch.engagement()]
        model(*call.args)
        seen.add(tuple(row.kernel_calls - b for row, b in zip(patch.engagement(), before, strict=True)))

    tasks = {w.task: w.fingerprint for w in winners}
    rows = ablate(patch, step, tasks, seconds=20, pace=Pace(rounds=5, block_s=0.001, warm_s=0.01))
    assert [row.task for row in rows] == list(tasks)
    assert seen == {(1, 1), (1, 0), (0, 1), (0, 0)}
