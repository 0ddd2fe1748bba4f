"""No honest kernel is rejected, whatever its style, in either dtype."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hotswap.optimizer.judge import Judge

sys.path.insert(0, str(Path(__file__).parent))
from candidates import HONEST_KERNELS


@pytest.mark.parametrize("name", HONEST_KERNELS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_an_honest_kernel_is_accepted(name: str, dtype: str, judge32: Judge, judge16: Judge) -> None:
    verdict = (judge32 if dtype == "fp32" else judge16).verdict(HONEST_KERNELS[name])
    assert verdict.accepted, f"{verdict.stage}: {verdict.reason}"
    assert verdict.speedup is not None
    assert verdict.races[0].arms[0].name == "candidate"
