"""A judge that times a source by the number written in it, and replies as a model would write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotswap.models.errors import InputError
from hotswap.optimizer.candidate import Candidate
from hotswap.optimizer.court import Pace
from hotswap.optimizer.verdict import Arm, Interval, Race, Verdict

NOISE = 0.02
PACE: Pace = {"block_s": 0.1, "rounds": 8, "pool_bytes": None}


def kernel(us: float, body: str = "x") -> str:
    """Return a candidate file that the scripted judge times at `us`."""
    return f"US = {us}\n\n\ndef kernel(x):\n    return {body}\n"


def whole(source: str) -> str:
    """Return a reply that gives a whole file."""
    return f"Here it is.\n```python\n{source}```\n"


def race(**medians: float) -> Race:
    arms = tuple(Arm(n, tuple(us * (1 + NOISE * (i - 4) / 8) for i in range(9)), us) for n, us in medians.items())
    own = medians.get("candidate", medians["eager"])
    speedup = {
        n: Interval(us / own, us / own * (1 - NOISE), us / own * (1 + NOISE))
        for n, us in medians.items()
        if n != "candidate"
    }
    return Race("call", 6.0, arms, speedup, "host wall", "cold", 0.2, 0.1)


@dataclass
class ScriptedJudge:
    """Times `US = ...`; a source with "wrong" in it is rejected at smoke. asked: every source it was given."""

    eager: float = 20.0
    tried: Sequence[Sequence[tuple[int, ...]]] = (((1, 384),), ((0, 384),), ((513, 384),))
    asked: list[str] = field(default_factory=list)

    def baseline(self) -> Race:
        return race(eager=self.eager, inductor=self.eager / 2)

    def verdict(self, source: str) -> Verdict:
        self.asked.append(source)
        digest = Candidate(source, "scripted", None, {}).hash
        if "wrong" in source:
            return Verdict(False, "smoke", "the kernel raised NameError", (), (), None, digest, "none", {})
        match = re.search(r"^US = ([0-9.]+)", source, re.MULTILINE)
        assert match is not None
        timed = race(eager=self.eager, inductor=self.eager / 2, candidate=float(match[1]))
        best = min(timed.speedup.values(), key=lambda i: i.median)
        return Verdict(True, None, None, (), (timed,), best, digest, "none", {})


@dataclass
class ScriptedExecutor:
    """Judges at once by what the source says; keeps the order of what it was asked. late: answers when told to."""

    slots: int = 1
    refuse: str = ""
    asked: list[tuple[int, str, str]] = field(default_factory=list)
    judge: ScriptedJudge = field(default_factory=ScriptedJudge)

    def open(self, slot: int, folder: Path, pace: Pace) -> Future[list[list[tuple[int, ...]]]]:
        self.asked.append((slot, folder.name, "open"))
        answer: Future[list[list[tuple[int, ...]]]] = Future()
        if folder.name == self.refuse:
            answer.set_exception(InputError("its inputs prove nothing"))
        else:
            answer.set_result([[(1, 384)]])
        return answer

    def baseline(self, slot: int, folder: Path) -> Future[Race]:
        return _done(race(eager=20.0, inductor=10.0))

    def verdict(self, slot: int, folder: Path, source: str) -> Future[Verdict]:
        self.asked.append((slot, folder.name, source))
        return _done(self.judge.verdict(source))

    def leave(self, slot: int, folder: Path) -> None:
        self.asked.append((slot, folder.name, "leave"))

    def close(self) -> None:
        pass


def _done(value: Any) -> Future[Any]:
    answer: Future[Any] = Future()
    answer.set_result(value)
    return answer
