"""Every guard is needed: with it switched off, a cheat that it stops is accepted."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest
from test_cheats import CHEATS, HONEST  # type: ignore[import-not-found]

from hotswap.optimizer.judge import Judge, arena, race, timed_outputs, trial
from hotswap.optimizer.judge.handle import Worker
from hotswap.optimizer.judge.stages import STAGES, Stage

# The packages give functions of these names out.
judge = sys.modules["hotswap.optimizer.judge.judge"]
integrity_module = sys.modules["hotswap.optimizer.judge.stages.integrity"]


def without(name: str) -> tuple[Stage, ...]:
    kept = tuple(stage for stage in STAGES if stage.__name__ != name)
    assert len(kept) == len(STAGES) - 1
    return kept


def nothing_wrong(*_: Any, **__: Any) -> None:
    return None


class Guard(NamedTuple):
    """What to replace to switch a guard off, and a cheat that then passes: a name of CHEATS, or a source."""

    off: tuple[tuple[Any, str, Any], ...]
    cheat: str


VALUES = (
    (trial, "misfit", nothing_wrong), (integrity_module, "misfit", nothing_wrong),
    (timed_outputs, "misfit", nothing_wrong),
)  # fmt: skip
UNSEEN_WHILE_TIMED = (race, "check_sprint", nothing_wrong)

GUARDS: dict[str, Guard] = {
    "the source is screened": Guard(((judge, "STAGES", without("screen")),), "constraints of its own making"),
    "values are compared": Guard(VALUES, "zeros"),
    "values are compared (nan)": Guard(VALUES, "nan as a wildcard"),
    "outputs are of the right kind": Guard(((trial, "_unlike", nothing_wrong),), "another layout"),
    "inputs are compared with what they were": Guard(((arena, "changed", lambda *_: []),), "changes an input"),
    "other shapes are tried": Guard(((judge, "STAGES", without("shapes")),), "right at the recorded shape only"),
    "strided inputs are tried": Guard(((judge, "STAGES", without("shapes")),), "ignores strides"),
    "hard values are tried": Guard(((judge, "STAGES", without("numerics")),), "ignores outliers"),
    "calls are repeated": Guard(((judge, "STAGES", without("determinism")),), "random noise"),
    "weights are changed in place": Guard(((judge, "STAGES", without("integrity")),), "undeclared packed weights"),
    "earlier outputs are looked at again": Guard(
        ((judge, "STAGES", without("integrity")), UNSEEN_WHILE_TIMED), "static output buffer"
    ),
    "outputs of timed calls are looked at": Guard((UNSEEN_WHILE_TIMED,), "lazy until it is looked at"),
    "outputs of timed calls are looked at (count)": Guard((UNSEEN_WHILE_TIMED,), "call-count switch"),
    "outputs of timed calls are looked at (loop)": Guard((UNSEEN_WHILE_TIMED,), "replaces the loop that calls it"),
    "weights are packed while activations are others": Guard(
        ((trial, "_rolled", lambda t: t), UNSEEN_WHILE_TIMED), "prepare works on activations"
    ),
    "processes left behind are counted": Guard(((Worker, "others", lambda _: 0),), "leaves a helper running"),
}


@pytest.mark.parametrize("name", GUARDS)
def test_without_the_guard_the_cheat_passes(name: str, judge32: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = GUARDS[name]
    for place, attribute, replacement in guard.off:
        monkeypatch.setattr(place, attribute, replacement)
    verdict = judge32.verdict(CHEATS[guard.cheat].source)
    assert verdict.accepted, f"{verdict.stage}: {verdict.reason}"


def test_with_every_guard_on_an_honest_kernel_passes(judge32: Judge) -> None:
    verdict = judge32.verdict(HONEST + "def kernel(x, weight): return right(x, weight)")
    assert verdict.accepted, verdict.reason
