"""Every known cheat is rejected, at the stage that is meant to see it, by a reason that names it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hotswap.optimizer.judge import Judge

sys.path.insert(0, str(Path(__file__).parent))
from candidates import CHEATS, HONEST_KERNELS

# These need namespaces, which only some machines give: without them the answer is the same by another way.
_NEED_NAMESPACES = {"calls home", "kills its judge", "looks for the task on disk"}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_rejected_by_name(name: str, judge32: Judge) -> None:
    cheat = CHEATS[name]
    verdict = judge32.verdict(cheat.source)
    if name in _NEED_NAMESPACES and "namespace" not in verdict.isolation:
        pytest.skip(f"isolated only by: {verdict.isolation}")
    assert not verdict.accepted
    assert (verdict.stage, cheat.reason in (verdict.reason or "")) == (cheat.stage, True), verdict.reason
    assert not verdict.races
    assert os.getpid()


def test_an_honest_kernel_is_judged_normally_after_all_of_them(judge32: Judge) -> None:
    assert judge32.verdict(HONEST_KERNELS["plain composition"]).accepted
