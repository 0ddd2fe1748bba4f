"""The template proposer lowers once, walks the knobs, and then looks around the best."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from loop_regions import layer_norm
from torch import Tensor

from hotswap.extractor.load_task import LoadedTask
from hotswap.extractor.task import ShapeCase, Task, TensorSpec
from hotswap.optimizer.attempt import Attempt
from hotswap.optimizer.candidate import Candidate
from hotswap.optimizer.codegen.cpp import CppKnobs
from hotswap.optimizer.codegen.triton import TritonKnobs
from hotswap.optimizer.codegen.triton_check import Screen
from hotswap.optimizer.codegen.triton_compile import Build, Cases, Compiled, Target
from hotswap.optimizer.proposers.template import Template
from hotswap.optimizer.verdict import Verdict


def spec(name: str, *shape: int) -> TensorSpec:
    strides = torch.empty(shape).stride()
    return TensorSpec(name, shape, tuple(strides), 0, "float32", "activation", mean=0.0, std=1.0, low=-3.0, high=3.0)


def loaded(reference: object = layer_norm, device: str = "cpu") -> LoadedTask:
    inputs = (spec("x", 4, 24), spec("w", 24), spec("b", 24))
    task = Task(
        name="norm",
        fingerprint="norm",
        kind="memory",
        device=device,
        ops=("layer_norm",),
        inputs=("x", "w", "b"),
        outputs=1,
        cases=(ShapeCase("call", inputs, 1, 1.0, 10.0),),
        sites=(),
        eager_us=10.0,
        floor_us=1.0,
        share=0.1,
        ceiling=1.1,
    )
    return LoadedTask(Path("norm"), task, reference, "", {})  # type: ignore[arg-type]


def attempt(candidate: Candidate, median_us: float | None) -> Attempt:
    accepted = median_us is not None
    verdict = Verdict(
        accepted=accepted,
        stage=None if accepted else "numerics",
        reason=None if accepted else "wrong",
        stages=(),
        races=(),
        speedup=None,
        source_hash=candidate.hash,
        isolation="none",
        environment={},
    )
    return Attempt(
        0, "norm", "norm", candidate.hash, candidate.parent, "template", candidate.knobs, 0.0, 1.0, verdict, median_us,
        accepted, {},
    )  # fmt: skip


def offered(template: Template, *times: float | None) -> list[Candidate]:
    """Return what is offered while the judge answers with these times; None is a rejection."""
    candidates: list[Candidate] = []
    history: list[Attempt] = []
    for median_us in times:
        candidate = template.propose(template.loaded.task, history)
        if candidate is None:
            break
        candidates.append(candidate)
        history.append(attempt(candidate, median_us))
    return candidates


def test_the_first_offer_is_the_best_guess_and_runs() -> None:
    (first,) = offered(Template(loaded()), 5.0)
    assert first.knobs == CppKnobs().as_dict()
    assert first.parent is None
    names: dict[str, object] = {}
    exec(compile(first.source, "<candidate>", "exec"), names)
    x, w, b = torch.randn(7, 40), torch.randn(40), torch.randn(40)
    kernel = names["kernel"]
    assert callable(kernel)
    got = kernel(x, w, b)
    assert isinstance(got, Tensor)
    torch.testing.assert_close(got, layer_norm(x, w, b))


def test_after_a_success_one_knob_at_a_time_is_turned_around_the_best() -> None:
    first, second, third = offered(Template(loaded()), 5.0, 4.0, 6.0)
    assert second.parent == first.hash
    assert len(set(second.knobs.items()) ^ set(first.knobs.items())) == 2
    assert third.parent == second.hash
    assert len(set(third.knobs.items()) ^ set(second.knobs.items())) == 2


def test_nothing_is_offered_twice_and_offers_end() -> None:
    candidates = offered(Template(loaded()), *([5.0] * 40))
    assert 4 <= len(candidates) < 40
    assert len({c.hash for c in candidates}) == len(candidates)


def test_a_program_that_is_wrong_is_not_offered_with_every_knob() -> None:
    assert len(offered(Template(loaded()), None, None, None)) == 2


def test_a_region_that_is_no_loop_nest_is_declined_with_the_reason() -> None:
    template = Template(loaded(lambda x, w, b: (x @ x.t(),)))
    assert offered(template, 5.0) == []
    assert template.reason is not None
    assert "aten.mm" in template.reason


def test_a_device_nobody_writes_for_is_declined() -> None:
    template = Template(loaded(device="xpu:0"))
    assert offered(template, 5.0) == []
    assert template.reason == "device xpu:0: no language for it"


class Compilers:
    """Stands in for the compilers: some values of `each` spill, and `step` makes no difference."""

    def __init__(self, *spilling: int) -> None:
        self.spilling = spilling
        self.asked: list[str] = []

    def builds(self, sources: Sequence[str], cases: Cases, target: Target) -> list[Build]:
        self.asked += sources
        assert [t.shape for t in cases[0]] == [(4, 24), (24,), (24,)]
        return [Build((Compiled("_tile", 32, 8 * self._spills(s), 0, 4),), None, self._same(s), 1.0) for s in sources]

    def _same(self, source: str) -> str:
        return re.sub(r"STEP = \d+|step=\d+", "", source)

    def _spills(self, source: str) -> bool:
        return any(f"EACH = {each}\n" in source for each in self.spilling)


def on_gpu(*spilling: int) -> tuple[Template, Compilers]:
    task, compilers = loaded(device="cuda:0"), Compilers(*spilling)
    return Template(task, screen=Screen(task.task, Target(), compilers)), compilers  # type: ignore[arg-type]


def test_a_gpu_is_offered_triton() -> None:
    template, _ = on_gpu()
    first, second = offered(template, 5.0, 4.0)
    assert "@triton.jit" in first.source
    assert first.knobs == TritonKnobs().as_dict()
    assert second.knobs != first.knobs


def test_a_best_setting_does_not_end_the_round_of_first_guesses() -> None:
    template, _ = on_gpu()
    candidates = offered(template, 5.0, *([6.0] * 7))
    known = TritonKnobs().as_dict()
    apart = {len(set(c.knobs.items()) - set(known.items())) for c in candidates}
    assert apart >= {0, 1}
    assert max(apart) > 1  # no neighbour of the best is


def test_what_spills_is_not_offered_and_said() -> None:
    template, _ = on_gpu(16, 32)
    candidates = offered(template, *([5.0] * 60))
    assert candidates
    assert not {16, 32} & {c.knobs["each"] for c in candidates}
    assert set(template.refused.values()) >= {"_tile: 8 bytes of registers spilled"}
    assert "were not offered" in (template.reason or "")


def test_settings_that_do_the_same_are_offered_once() -> None:
    template, _ = on_gpu()
    candidates = offered(template, *([5.0] * 60))
    assert {c.knobs["step"] for c in candidates} == {TritonKnobs().step}
    assert "does the same as" in next(iter(template.refused.values()))


def test_nothing_is_compiled_twice() -> None:
    template, compilers = on_gpu(16)
    offered(template, *([5.0] * 20))
    assert len(set(compilers.asked)) == len(compilers.asked)
