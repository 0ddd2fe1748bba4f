"""An anchor with an epilogue: the reference's own call, then one loop nest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_library_proposers import kernel_of, task_of

from hotswap.extractor.load_task import LoadedTask
from hotswap.optimizer.attempt import Attempt
from hotswap.optimizer.proposers.epilogue import Epilogue

REFERENCE = """
'A linear and the sigmoid form of GELU.'
import torch

def reference(x, weight):
    linear = torch._C._nn.linear(x, weight)
    scaled = 1.702 * linear
    return (linear * torch.sigmoid(scaled),)
"""


def task_with(source: str, given: dict[str, torch.Tensor]) -> LoadedTask:
    names: dict[str, Any] = {}
    exec(source, names)
    reference: Callable[..., tuple[torch.Tensor, ...]] = names["reference"]
    return LoadedTask(Path("nowhere"), task_of(given, ("weight",)), reference, source, {})


@pytest.fixture
def given() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {"x": torch.randn(5, 16), "weight": torch.randn(24, 16)}


def test_the_anchor_is_called_as_the_reference_calls_it_and_the_rest_is_one_loop_nest(
    given: dict[str, torch.Tensor],
) -> None:
    loaded = task_with(REFERENCE, given)
    candidate = Epilogue(loaded).propose(loaded.task, [])
    assert candidate is not None
    assert "linear = torch._C._nn.linear(x, weight)" in candidate.source
    out = kernel_of(candidate.source)["kernel"](*given.values())
    torch.testing.assert_close(out, loaded.reference(*given.values()))


def test_another_setting_of_the_loop_nest_follows_a_rejected_one(given: dict[str, torch.Tensor]) -> None:
    loaded = task_with(REFERENCE, given)
    proposer = Epilogue(loaded)
    first = proposer.propose(loaded.task, [])
    assert first is not None
    tried = Attempt(1, "t", "f" * 16, first.hash, None, "epilogue", first.knobs, 0.0, 0.0, None, None, False, {})
    second = proposer.propose(loaded.task, [tried])
    assert second is not None
    assert second.hash != first.hash


def test_an_anchor_alone_has_no_epilogue(given: dict[str, torch.Tensor]) -> None:
    alone = REFERENCE.replace("scaled = 1.702 * linear", "").replace("linear * torch.sigmoid(scaled)", "linear")
    loaded = task_with(alone, given)
    assert Epilogue(loaded).propose(loaded.task, []) is None


def test_code_that_branches_is_left_alone(given: dict[str, torch.Tensor]) -> None:
    branching = REFERENCE.replace(
        "    scaled = 1.702 * linear", "    scaled = linear\n    if True:\n        scaled = -linear"
    )
    loaded = task_with(branching, given)
    assert Epilogue(loaded).propose(loaded.task, []) is None


def test_what_no_loop_nest_can_say_is_said(given: dict[str, torch.Tensor]) -> None:
    sorts = REFERENCE.replace("scaled = 1.702 * linear", "scaled = torch.sort(linear)[0]")
    loaded = task_with(sorts, given)
    proposer = Epilogue(loaded)
    assert proposer.propose(loaded.task, []) is None
    assert proposer.reason is not None
    assert "sort" in proposer.reason
