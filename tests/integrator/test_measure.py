"""Timing on a clock that the test owns: what the machine does is then known exactly."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from hotswap.integrator.ablate import ablate, decide, plan
from hotswap.integrator.blocks import Pace, Timed, interleave, warm
from hotswap.integrator.measure import compiled_arm, measure, pace_for
from hotswap.models.workload import Call
from hotswap.optimizer.verdict import Interval


class Machine:
    """A machine that slows down steadily, with a little noise; arms are seconds of work on it."""

    def __init__(self, drift: float = 0.0, noise: float = 0.02, seed: int = 0) -> None:
        self.now, self.drift, self.noise, self.source = 0.0, drift, noise, random.Random(seed)
        self.log: list[str] = []

    def clock(self) -> float:
        return self.now

    def arm(self, seconds: float, name: str = "") -> Callable[[], None]:
        def work() -> None:
            self.log.append(name)
            self.now += seconds * (1 + self.drift * self.now) * (1 + self.noise * self.source.random())

        return work

    def pace(self, rounds: int = 8, block_s: float = 0.2) -> Pace:
        return Pace(rounds=rounds, block_s=block_s, warm_s=1.0, clock=self.clock, load=lambda: 0.5)


def test_equal_arms_read_one_even_while_the_machine_slows_down() -> None:
    wrong = 0
    for seed in range(20):
        machine = Machine(drift=0.02, seed=seed)
        arms = {"eager": machine.arm(0.01), "hotswap": machine.arm(0.01)}
        speedup = measure(arms, call=Call(), pace=machine.pace(), seed=seed).speedup["eager"]
        assert speedup.median == pytest.approx(1.0, abs=0.03)
        wrong += speedup.excludes(1.0)
    assert wrong <= 1


def test_exchanged_sides_give_the_reciprocal() -> None:
    machine = Machine()
    arms = {"a": machine.arm(0.0105), "b": machine.arm(0.01)}
    there = measure(arms, call=Call(), subject="b", pace=machine.pace()).speedup["a"]
    back = measure(arms, call=Call(), subject="a", pace=machine.pace()).speedup["b"]
    assert there.low > 1.0
    assert back.high < 1.0
    assert there.median * back.median == pytest.approx(1.0, abs=0.01)


def test_the_record_keeps_all_samples_the_load_and_the_compile_times() -> None:
    machine = Machine(noise=0.0)
    arms = {"eager": machine.arm(0.02), "compile": machine.arm(0.015), "hotswap": machine.arm(0.01)}
    result = measure(arms, call=Call(name="short", weight=3), pace=machine.pace(), compile_s={"compile": 20.0})
    assert [(arm.name, len(arm.samples_us)) for arm in result.arms] == [("eager", 8), ("compile", 8), ("hotswap", 8)]
    assert [arm.median_us for arm in result.arms] == pytest.approx([20_000, 15_000, 10_000])
    assert result.speedup["eager"].median == pytest.approx(2.0)
    assert result.speedup["compile"].median == pytest.approx(1.5)
    assert (result.call, result.weight, result.load_average, result.compile_s) == ("short", 3, 0.5, {"compile": 20.0})


def test_blocks_are_never_shorter_than_asked() -> None:
    machine = Machine(noise=0.0)
    machine.log.clear()
    blocks = interleave({"a": Timed(machine.arm(0.03, "a"))}, machine.pace(rounds=8, block_s=0.2), seed=0)
    assert len(blocks.samples_us["a"]) == 8
    # 7 calls of 0.03 s fill a block of 0.2 s; each block has one call ahead of it.
    assert machine.log[-8:] == ["a"] * 8
    spent = machine.now
    assert spent >= 8 * (0.21 + 0.03)


def test_a_round_runs_every_arm_once_and_the_next_round_in_reverse() -> None:
    machine = Machine(noise=0.0)
    order: list[str] = []
    arms = {n: Timed(machine.arm(0.3), before=lambda n=n: order.append(n)) for n in "abc"}  # type: ignore[misc]
    interleave(arms, machine.pace(rounds=8), seed=1)
    rounds = [order[i : i + 3] for i in range(3, len(order), 3)]  # the first three are the warm-up
    assert len(rounds) == 8
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert all(rounds[i + 1] == rounds[i][::-1] for i in range(0, 8, 2))
    assert len({tuple(one) for one in rounds}) > 2


def test_warming_up_goes_on_until_calls_stop_getting_faster() -> None:
    machine = Machine(noise=0.0)
    times = iter([1.0, 0.5, 0.2, 0.1, *[0.01] * 100])

    def settling() -> None:
        machine.now += next(times)

    assert warm(Timed(settling), Pace(clock=machine.clock, warm_s=10.0)) == pytest.approx(0.01)


def test_a_first_call_that_compiles_is_not_taken_for_the_pace_of_the_rest() -> None:
    machine = Machine(noise=0.0)
    times = iter([30.0, *[0.01] * 100])

    def compiling() -> None:
        machine.now += next(times)

    assert warm(Timed(compiling), Pace(clock=machine.clock, warm_s=2.0)) == pytest.approx(0.01)


def test_garbage_is_not_collected_inside_a_block_and_is_again_afterwards() -> None:
    machine, seen = Machine(), set[bool]()
    work = machine.arm(0.05)

    def arm() -> None:
        seen.add(gc.isenabled())
        work()

    interleave({"a": Timed(arm)}, machine.pace(), seed=0)
    assert seen == {False}
    assert gc.isenabled()


def test_work_left_running_is_waited_for_inside_the_clock() -> None:
    machine, pending = Machine(noise=0.0), [0.0]

    def launch() -> None:
        pending[0] += 0.01  # returns at once, as a GPU launch does

    def finish() -> None:
        machine.now += pending[0]
        pending[0] = 0.0

    pace = Pace(rounds=8, warm_s=1.0, clock=machine.clock, finish=finish, load=lambda: 0.0)
    assert interleave({"a": Timed(launch)}, pace, seed=0).samples_us["a"] == pytest.approx([10_000] * 8)


def test_too_few_blocks_or_a_missing_subject_are_refused() -> None:
    machine = Machine()
    with pytest.raises(ValueError, match="at least 8"):
        measure({"hotswap": machine.arm(1)}, call=Call(), pace=machine.pace(rounds=7))
    with pytest.raises(ValueError, match="'hotswap' is no arm"):
        measure({"eager": machine.arm(1)}, call=Call(), pace=machine.pace())


def test_an_inference_workload_runs_without_gradients_and_a_training_one_with_the_callers_setting() -> None:
    machine, seen = Machine(), set[bool]()
    work = machine.arm(0.1)

    def arm() -> None:
        seen.add(torch.is_grad_enabled())
        work()

    measure({"hotswap": arm}, call=Call(), pace=machine.pace())
    assert seen == {False}
    seen.clear()
    measure({"hotswap": arm}, call=Call(), pace=machine.pace(), mode="training")
    assert seen == {True}


def test_a_cpu_model_needs_no_wait() -> None:
    assert pace_for(nn.Linear(2, 2)).finish is None


def test_the_compiled_arm_leaves_nothing_on_the_users_instance() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    x = torch.randn(2, 4)
    arm = compiled_arm(model, Call((x,)), backend="eager")
    with torch.no_grad():
        assert torch.equal(torch.as_tensor(arm.call()), model(x))
    assert arm.compile_s > 0
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    assert list(model.state_dict()) == ["0.weight", "0.bias"]


class Patched:
    """A step whose time each enabled task changes by a factor."""

    def __init__(self, machine: Machine, factors: dict[str, float]) -> None:
        self.machine, self.factors, self.on = machine, factors, dict.fromkeys(factors, True)
        self.compile_s, self.compiled = 0.0, set[tuple[bool, ...]]()

    def enable(self, fingerprint: str, on: bool) -> None:
        self.on[fingerprint] = on

    def step(self) -> None:
        if tuple(self.on.values()) not in self.compiled:
            self.compiled.add(tuple(self.on.values()))
            self.machine.now += self.compile_s
        seconds = 0.02
        for fingerprint, on in self.on.items():
            seconds *= self.factors[fingerprint] if on else 1.0
        self.machine.arm(seconds)()


def test_ablation_keeps_what_helps_and_drops_what_does_not() -> None:
    machine = Machine(noise=0.01)
    patch = Patched(machine, {"f1": 0.8, "f2": 1.0, "f3": 1.1})
    tasks = {"gelu": "f1", "norm": "f2", "softmax": "f3"}
    rows = ablate(patch, patch.step, tasks, seconds=60, predicted={"gelu": 1.3}, pace=machine.pace())
    assert [(row.task, row.kept) for row in rows] == [("gelu", True), ("norm", False), ("softmax", False)]
    assert rows[0].leave_one_out.median == pytest.approx(1.25, rel=0.02)
    assert rows[0].add_one_in is not None
    assert rows[0].add_one_in.median == pytest.approx(1.25, rel=0.02)
    assert (rows[0].predicted, rows[1].predicted) == (1.3, 1.0)
    assert rows[1].reason.startswith("within noise: 1.00")
    assert rows[2].reason.startswith("slower with it: 0.9")
    assert patch.on == dict.fromkeys(patch.on, True)


def test_items_within_the_noise_are_dropped_unless_asked_for() -> None:
    noise = Interval(1.001, 0.99, 1.01)
    assert decide(noise)[0] is False
    assert decide(noise, "keep")[0] is True
    assert decide(Interval(0.97, 0.96, 0.98), "keep")[0] is False
    assert decide(Interval(1.02, 1.01, 1.03))[0] is True


@pytest.mark.parametrize(("tasks", "compile_s", "alone"), [(1, 0.5, True), (3, 1, True), (10, 0, True), (10, 1, False)])
def test_ablation_keeps_to_its_time(tasks: int, compile_s: float, alone: bool) -> None:
    machine = Machine(noise=0.0)
    patch = Patched(machine, {f"f{i}": 0.99 for i in range(tasks)})
    patch.compile_s = compile_s
    rows = ablate(patch, patch.step, {f"t{i}": f"f{i}" for i in range(tasks)}, seconds=20, pace=machine.pace())
    assert len(rows) == tasks
    assert (rows[0].add_one_in is not None) == alone
    assert machine.now < 22


def test_many_tasks_get_shorter_blocks_then_no_add_one_in_but_never_under_five_rounds() -> None:
    pace = Pace(block_s=0.2)
    roomy, alone = plan(0.01, 0.1, 2, 60, pace)
    assert (roomy.block_s, roomy.rounds, alone) == (0.2, 16, True)
    tight, alone = plan(0.01, 0.1, 10, 20, pace)
    assert tight.block_s < 0.2
    assert tight.rounds >= 5
    hopeless, alone = plan(0.5, 0.5, 10, 5, pace)
    assert (hopeless.rounds, hopeless.block_s, alone) == (5, 0.5, False)


def test_nothing_swapped_is_nothing_to_ablate() -> None:
    machine = Machine()
    patch = Patched(machine, {})
    assert ablate(patch, patch.step, {}, seconds=10) == ()
    assert machine.now == 0.0
