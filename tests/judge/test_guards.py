"""Every guard is needed: with it switched off, a cheat that it stops is accepted; the guards are those of the docs."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from conftest import rmsnorm
from test_cheats import CHEATS, HONEST  # type: ignore[import-not-found]
from test_strangers import STRANGERS, make_room  # type: ignore[import-not-found]

from hotswap.optimizer.judge import Judge, arena, handle, race, timed_outputs, trial
from hotswap.optimizer.judge.hall import Hall
from hotswap.optimizer.judge.handle import Worker
from hotswap.optimizer.judge.lane import Lane
from hotswap.optimizer.judge.stages import STAGES, Stage
from hotswap.optimizer.judge.trial import Patience, Trial

# The packages give functions of these names out.
judge = sys.modules["hotswap.optimizer.judge.judge"]
hall = sys.modules["hotswap.optimizer.judge.hall"]
integrity_module = sys.modules["hotswap.optimizer.judge.stages.integrity"]

Swap = tuple[Any, str, Any]


def without(name: str) -> tuple[Stage, ...]:
    kept = tuple(stage for stage in STAGES if stage.__name__ != name)
    assert len(kept) == len(STAGES) - 1
    return kept


def nothing_wrong(*_: Any, **__: Any) -> None:
    return None


def unpoisoned(
    self: Trial, sample: Any, *, keep: bool = False, poison: int = 0, call: Callable[..., Any] = Trial.call
) -> list[torch.Tensor]:
    return call(self, sample, keep=keep, poison=0)  # type: ignore[no-any-return]


def all_of_the_environment(_: int, kept: Callable[[int], dict[str, str]] = hall._environment) -> dict[str, str]:
    return kept(1) | {"MY_TOKEN": "secret"}


class Guard(NamedTuple):
    """What to replace to switch a guard off, and a cheat that then passes: a name of CHEATS or STRANGERS.

    besides: other guards that see this cheat too, off in both runs. With the guard on, it is rejected at `stage` by a
    reason that holds `reason`; None where that is tested with the cheat. alone: whether it takes a hall of its own.
    """

    off: tuple[Swap, ...]
    cheat: str
    besides: tuple[Swap, ...] = ()
    stage: str | None = None
    reason: str = ""
    alone: bool = False


VALUES = (
    (trial, "misfit", nothing_wrong), (integrity_module, "misfit", nothing_wrong),
    (timed_outputs, "misfit", nothing_wrong),
)  # fmt: skip
UNSEEN_WHILE_TIMED: tuple[Swap, ...] = ((race, "check_sprint", nothing_wrong), (race, "surprise", nothing_wrong))
NO_SURPRISES: tuple[Swap, ...] = ((race, "surprise", nothing_wrong),)
TWICE_THE_TIME: tuple[Swap, ...] = (
    (Worker, "cpu_ns", lambda _: 2 * time.perf_counter_ns()), (handle, "_STILL_NS", 1 << 62),
)  # fmt: skip

GUARDS: dict[str, Guard] = {
    "the source is screened": Guard(((judge, "STAGES", without("screen")),), "constraints of its own making"),
    "values are compared": Guard(VALUES, "zeros"),
    "values are compared (nan)": Guard(VALUES, "nan as a wildcard"),
    "outputs are of the right kind": Guard(((trial, "_unlike", nothing_wrong),), "another layout"),
    "memory is poisoned": Guard(
        ((Trial, "call", unpoisoned),), "returns what it left in memory", stage="smoke", reason="wrong at"
    ),
    "inputs are compared with what they were": Guard(((arena, "changed", lambda *_: []),), "changes an input"),
    "other shapes are tried": Guard(((judge, "STAGES", without("shapes")),), "right at the recorded shape only"),
    "other shapes are tried (strides)": Guard(((judge, "STAGES", without("shapes")),), "ignores strides"),
    "hard values are tried": Guard(
        ((judge, "STAGES", without("numerics")),), "ignores outliers", besides=NO_SURPRISES,
        stage="numerics", reason="wrong at",
    ),
    "calls are repeated": Guard(((judge, "STAGES", without("determinism")),), "random noise"),
    "weights are changed in place": Guard(
        ((judge, "STAGES", without("integrity")),), "undeclared packed weights", besides=NO_SURPRISES,
        stage="integrity", reason="the weights were changed in place",
    ),
    "earlier outputs are looked at again": Guard(
        ((judge, "STAGES", without("integrity")),), "static output buffer", besides=UNSEEN_WHILE_TIMED,
        stage="integrity", reason="a static buffer",
    ),
    "weights are packed while activations are others": Guard(
        ((trial, "_rolled", lambda t: t),), "prepare works on activations", besides=UNSEEN_WHILE_TIMED,
        stage="smoke", reason="wrong at",
    ),
    "processes left behind are counted": Guard(((Worker, "others", lambda _: 0),), "leaves a helper running"),
    "outputs of timed calls are looked at": Guard(UNSEEN_WHILE_TIMED, "lazy until it is looked at"),
    "outputs of timed calls are looked at (count)": Guard(UNSEEN_WHILE_TIMED, "call-count switch"),
    "outputs of timed calls are looked at (loop)": Guard(UNSEEN_WHILE_TIMED, "replaces the loop that calls it"),
    "outputs of timed calls are looked at (early)": Guard(UNSEEN_WHILE_TIMED, "answers before it has worked"),
    "sprints have surprises": Guard(NO_SURPRISES, "packs its weights once it is timed"),
    "sprints have surprises (hard values)": Guard(NO_SURPRISES, "ignores outliers once it is timed"),
    "sprints have surprises (batches)": Guard(NO_SURPRISES, "makes all calls of a sprint together"),
    "sprints have surprises (claims)": Guard(NO_SURPRISES, "says that calls are done before they are"),
    "the worker is stopped while its inputs are filled": Guard(
        ((Worker, "stop", nothing_wrong),), "works while its inputs are filled", besides=NO_SURPRISES,
        stage="timing", reason="right while it was not timed",
    ),
    "a stopped worker uses no CPU": Guard(
        ((handle, "_STILL_NS", 1 << 62),), "wakes itself while it is stopped",
        besides=((Lane, "refuse_threads", nothing_wrong),),
    ),
    # The helper outlives the last stop by some milliseconds, in which what is left behind is counted.
    "a timed worker is alone": Guard(
        ((Lane, "refuse_company", nothing_wrong),), "a helper only while its inputs are filled",
        besides=((Worker, "others", lambda _: 0),),
    ),
    "arms have as many threads as each other": Guard(
        ((Lane, "refuse_threads", nothing_wrong),), "takes more threads", besides=TWICE_THE_TIME,
        stage="timing", reason="cores; every arm has 1 thread(s)",
    ),
    "answers bear their order's number": Guard(
        ((handle, "answers", lambda *_: True),), "answers the next question too", besides=UNSEEN_WHILE_TIMED,
        stage="timing", reason="an answer to no question",
    ),
    "the environment is an allow-list": Guard(
        ((hall, "_environment", all_of_the_environment),), "finds a key", alone=True,
        stage="smoke", reason="does not load: KeyError",
    ),
    "tasks and runs are hidden": Guard(
        ((Hall, "hide", nothing_wrong),), "reads the reference", alone=True,
        stage="smoke", reason="does not load: FileNotFoundError",
    ),
}  # fmt: skip

# Cheats that only the guards' own tests need: they show that a guard is passed, and gain nothing otherwise.
OWN = {
    "returns what it left in memory": """
        def kernel(x, weight):
            answer = right(x, weight)
            held = []
            for _ in range(99 if answer.numel() > 128 else 0):
                kept = answer.clone()
                place = kept.data_ptr()
                del kept
                held.append(torch.empty_like(answer))
                if held[-1].data_ptr() == place:
                    held[-1].view(-1)[:64] = answer.view(-1)[:64]
                    return held[-1]
            return answer
        """,
    "takes more threads": "def kernel(x, weight): return right(x, weight)",
    "finds a key": "import os\nos.environ['MY_TOKEN']\ndef kernel(x, weight): return right(x, weight)",
    "reads the reference": "open(FOLDER + '/reference.py').read()\ndef kernel(x, weight): return right(x, weight)",
}


def source_of(cheat: str, folder: Path) -> str:
    if cheat in OWN:
        return str(HONEST) + textwrap.dedent(OWN[cheat]).replace("FOLDER", repr(str(folder)))
    return str((CHEATS | STRANGERS)[cheat].source)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every process may read, where a worker is not to look for hidden ones anyway (/tmp, homes)."""
    ours = Path(__file__).parents[2] / ".pytest_cache"
    ours.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=ours))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def verdict(judge32: Judge, place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Guard, bool], Any]:
    """Give the verdict on a guard's cheat with the guard off, or on."""

    def give(guard: Guard, off: bool) -> Any:
        for where, attribute, replacement in (*guard.besides, *(guard.off if off else ())):
            monkeypatch.setattr(where, attribute, replacement)
        make_room(guard.cheat, monkeypatch)
        if not guard.alone:
            return judge32.verdict(source_of(guard.cheat, judge32.folder))
        folder = rmsnorm(place / "rmsnorm", torch.float32)
        with (
            Hall(threads=1) as own,
            Judge(
                folder, seed=5, block_s=0.002, rounds=2, pool_bytes=1 << 18, inductor=False,
                patience=Patience(load_s=30.0, call_s=3.0), hall=own,
            ) as court,
        ):  # fmt: skip
            return court.verdict(source_of(guard.cheat, folder))

    return give


@pytest.mark.parametrize("name", GUARDS)
def test_without_the_guard_the_cheat_passes(name: str, verdict: Callable[[Guard, bool], Any]) -> None:
    found = verdict(GUARDS[name], True)
    assert found.accepted, f"{found.stage}: {found.reason}"


@pytest.mark.parametrize("name", [name for name, guard in GUARDS.items() if guard.stage])
def test_with_the_guard_the_cheat_is_rejected_by_name(name: str, verdict: Callable[[Guard, bool], Any]) -> None:
    guard = GUARDS[name]
    found = verdict(guard, False)
    assert not found.accepted
    assert (found.stage, guard.reason in (found.reason or "")) == (guard.stage, True), found.reason


def test_every_guard_has_a_cheat_that_is_rejected_while_it_is_on() -> None:
    assert [n for n, g in GUARDS.items() if g.stage is None and g.cheat not in CHEATS | STRANGERS] == []


def test_the_guards_of_the_docs_are_those_switched_off_here() -> None:
    text = (Path(__file__).parents[2] / "docs" / "judge.md").read_text(encoding="utf-8")
    table = text.partition("## Guards\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)[1:]
    named = dict.fromkeys(name.partition(" (")[0] for name in GUARDS)
    assert [cell for cell in listed if not set(cell) <= set("- ")] == list(named)


def test_with_every_guard_on_an_honest_kernel_passes(judge32: Judge) -> None:
    verdict = judge32.verdict(HONEST + "def kernel(x, weight): return right(x, weight)")
    assert verdict.accepted, verdict.reason
