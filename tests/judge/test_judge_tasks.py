"""Tasks of several forms: who is accepted, who is not, and which tasks are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hotswap.models.errors import InputError
from hotswap.optimizer.judge import Judge

Make = Callable[..., Path]
Quick = Callable[[Path], Judge]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(11))


SOFTMAX = """
    import torch

    def reference(x, mask):
        return (torch.softmax(x.masked_fill(~mask, float("-inf")), -1),)
"""
STABLE = """
import torch
def kernel(x, mask):
    x = x.masked_fill(~mask, float("-inf"))
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)
"""


@pytest.fixture
def softmax(make_task: Make) -> Path:
    inputs = {"x": draw(6, 33), "mask": torch.rand(6, 33, generator=torch.Generator().manual_seed(1)) < 0.8}
    return make_task(SOFTMAX, inputs, symbols=(((0, 0), (1, 0)), ((0, 1), (1, 1))))


def test_a_masked_softmax_is_judged_by_its_arithmetic(softmax: Path, quick: Quick) -> None:
    with quick(softmax) as court:
        assert court.verdict(STABLE).reason is None
        unstable = court.verdict(STABLE.replace("x - x.amax(-1, keepdim=True)", "x"))
        assert unstable.stage == "numerics"
        constant_mask = court.verdict(STABLE.replace("~mask", "torch.zeros_like(mask)"))
        assert constant_mask.stage == "smoke"


def test_every_output_of_several_is_looked_at(make_task: Make, quick: Quick) -> None:
    reference = """
        def reference(x, y):
            total = x + y
            return total, total.relu(), total > 0
    """
    folder = make_task(reference, {"x": draw(5, 16), "y": draw(5, 16).flip(0)}, outputs=3)
    good = "def kernel(x, y):\n    s = x + y\n    return s, s.clamp(min=0), s > 0\n"
    with quick(folder) as court:
        assert court.verdict(good).reason is None
        verdict = court.verdict(good.replace("s > 0", "s >= 0.1"))
        assert "output 2: wrong at" in (verdict.reason or "")
        swapped = court.verdict(good.replace("s, s.clamp(min=0), s > 0", "s, s.clamp(min=0)"))
        assert "returned 2 values, expected 3" in (swapped.reason or "")


def test_indices_stay_in_their_recorded_range(make_task: Make, quick: Quick) -> None:
    reference = """
        import torch

        def reference(indices, table):
            return (torch.nn.functional.embedding(indices, table) * 2,)
    """
    indices = torch.randint(0, 9, (4, 6), generator=torch.Generator().manual_seed(1))
    inputs = {"indices": indices, "table": draw(9, 8)}
    folder = make_task(reference, inputs, weights=["table"], symbols=(((0, 0),), ((0, 1),), ((1, 1),)))
    with quick(folder) as court:
        assert court.verdict("def kernel(indices, table): return (table[indices] * 2).contiguous()").reason is None
        sorted_only = court.verdict("def kernel(indices, table): return table[indices.clamp(max=4)] * 2")
        assert sorted_only.stage == "smoke"


def test_expanded_inputs_keep_their_zero_stride(make_task: Make, quick: Quick) -> None:
    reference = "def reference(x, row):\n    return (x * row,)\n"
    folder = make_task(reference, {"x": draw(4, 8), "row": draw(8).expand(4, 8)}, symbols=(((0, 0), (1, 0)),))
    check = "def kernel(x, row):\n    assert row.stride(0) == 0 or x.shape[0] == 1 or {also}\n    return x * row\n"
    with quick(folder) as court:
        dense_too = court.verdict(check.format(also="row.dim() == 2"))
        assert dense_too.reason is None
        never_dense = court.verdict(check.format(also="False"))
        assert never_dense.stage == "shapes"


def test_sizes_that_the_reference_refuses_are_held_against_nobody(make_task: Make, quick: Quick) -> None:
    reference = "def reference(x):\n    return (x.view(4, 2, 8).sum(1),)\n"
    folder = make_task(reference, {"x": draw(4, 16)}, symbols=(((0, 0),),))
    with quick(folder) as court:
        verdict = court.verdict("def kernel(x): return x.reshape(4, 2, 8).sum(1)")
        assert verdict.accepted
        shapes = next(s for s in verdict.stages if s.stage == "shapes")
        assert "sizes [5]" in shapes.evidence["refused by the reference"]


def test_every_recorded_case_is_tried_and_timed(make_task: Make, quick: Quick) -> None:
    reference = "def reference(x):\n    return (x.exp(),)\n"
    folder = make_task(reference, {"x": draw(4, 16)}, {"x": draw(2, 64)}, symbols=(((0, 0),), ((0, 1),)))
    with quick(folder) as court:
        verdict = court.verdict("def kernel(x): return x.exp()")
        assert [race.case for race in verdict.races] == ["case0", "case1"]
        assert (verdict.speedup is not None, len(court.baselines())) == (True, 2)
        second = court.verdict("def kernel(x): return x.exp() if x.shape[1] != 64 else x.clone()")
        assert (second.stage, (second.reason or "")[:5]) == ("shapes", "case1")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("return (x * 0,)", "zeros as the answer would pass"),
        ("return (x.clamp(0, 0) + 3.0,)", "the mean as the answer would pass"),
        ("return (x + 0.0,)", "an input as the answer would pass"),
        ("return (x.mul_(2),)", "changes its inputs"),
        ("return (x.view(7, 7, 7),)", "raises on its own recorded inputs"),
    ],
)
def test_a_task_that_proves_nothing_is_refused(body: str, why: str, make_task: Make, quick: Quick) -> None:
    folder = make_task(f"def reference(x):\n    {body}\n", {"x": draw(4, 16)})
    with pytest.raises(InputError, match=why):
        quick(folder)


def test_a_slow_kernel_is_right_and_slow(judge32: Judge) -> None:
    slow = """
import time, torch
def kernel(x, weight):
    time.sleep(0.01)
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
"""
    verdict = judge32.verdict(slow)
    assert verdict.accepted
    assert verdict.speedup is not None
    assert verdict.speedup.high < 0.9
    # Timed in full, a pool of such calls would take half a minute.
    assert verdict.stages[-1].evidence["depth"] == "screening, cut short: clearly slower"
    assert verdict.stages[-1].seconds < 15.0


def test_the_worker_sees_no_secrets_no_tasks_and_an_empty_folder(
    tmp_path: Path, make_task: Make, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "secret")
    look = """
import os, sys
def kernel(x):
    task = [m for m in sys.modules if "_hotswap_task" in m]
    raise RuntimeError(f"{sorted(os.listdir('.'))} {'MY_API_TOKEN' in os.environ} {task} {os.path.exists(FOLDER)}")
"""
    folder = make_task("def reference(x):\n    return (x.exp(),)\n", {"x": draw(4, 16)})
    with quick(folder) as court:
        verdict = court.verdict(look.replace("FOLDER", repr(str(folder / "reference.py"))))
    if not court.hall.tier.hides:
        pytest.skip(f"isolated only by: {verdict.isolation}")
    assert "['candidate.py'] False [] False" in (verdict.reason or "")
