"""Time whole models against each other: eager, compiled and patched, interleaved, with an interval on every ratio."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..models.workload import Call, Mode
from ..optimizer.timing import ratio_interval
from ..optimizer.verdict import Arm
from .blocks import Clock, Pace, Timed, interleave
from .results import EndToEnd

LEAST_ROUNDS = 8


@dataclass(frozen=True)
class CompiledArm:
    """A compiled stand-in for a model. compile_s: seconds of its first call, tracing and code generation included."""

    call: Callable[[], object]
    compile_s: float


def measure(
    arms: Mapping[str, Callable[[], object] | Timed],
    *,
    call: Call,
    subject: str = "hotswap",
    mode: Mode = "inference",
    pace: Pace | None = None,
    compile_s: Mapping[str, float] | None = None,
    seed: int = 0,
) -> EndToEnd:
    """Return interleaved timings of `arms`, and for each rival the interval of (its time / `subject`'s time).

    An arm is one call of a model, without arguments; a Timed one says what to switch ahead of its blocks. At least
    8 blocks a side, all samples kept in the order they ran.
    """
    pace = pace or Pace()
    if subject not in arms:
        raise ValueError(f"subject {subject!r} is no arm; arms are {', '.join(arms)}")
    if pace.rounds < LEAST_ROUNDS:
        raise ValueError(f"{pace.rounds} blocks a side; an interval needs at least {LEAST_ROUNDS}")
    with grad_mode(mode):
        timed = {name: arm if isinstance(arm, Timed) else Timed(arm) for name, arm in arms.items()}
        blocks = interleave(timed, pace, seed=seed)
    samples = blocks.samples_us
    return EndToEnd(
        call=call.name,
        weight=call.weight,
        arms=tuple(Arm(name, samples[name], statistics.median(samples[name])) for name in arms),
        speedup={name: ratio_interval(samples[name], samples[subject], seed=seed) for name in arms if name != subject},
        compile_s=dict(compile_s or {}),
        load_average=blocks.load,
    )


def pace_for(model: nn.Module, pace: Pace | None = None) -> Pace:
    """Return `pace`, or the usual one for the model's device, with the wait that the device needs inside the clock."""
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers()) if tensor.device.type == "cuda"}

    def finish() -> None:
        for device in devices:
            torch.cuda.synchronize(device)

    # A GPU's clocks need 0.2 s to hold up. On a CPU what disturbs comes in bursts, which many short blocks leave out.
    usual = Pace() if devices else Pace(rounds=48, block_s=0.03)
    return replace(pace or usual, finish=finish if devices else None)


def many_rounds(pace: Pace, call_s: float, arms: int, seconds: float) -> Pace:
    """Return `pace` with as many rounds as `seconds` hold, at least 8 and at most 48.

    call_s: seconds of one step; each block has one step ahead of it that is not counted.
    """
    once = arms * (call_s + max(pace.block_s, call_s))
    return replace(pace, rounds=max(LEAST_ROUNDS, min(48, int(seconds / once))))


def model_arm(run: Callable[..., Any], call: Call) -> Callable[[], object]:
    """Return one call of `run` on the example's own inputs: the tensors a user would pass, not copies of them."""
    args, kwargs = call.args, dict(call.kwargs)
    return lambda: run(*args, **kwargs)


def compiled_arm(
    model: nn.Module,
    call: Call,
    *,
    mode: str | None = None,
    backend: Any = "inductor",
    workload: Mode = "inference",
    clock: Clock = time.perf_counter,
) -> CompiledArm:
    """Return `model` under torch.compile, its first call made; nothing of it stays on the instance."""
    before = set(vars(model))
    compiled: Any = torch.compile(model, mode=mode, backend=backend)
    # The wrapper passes attributes set on it through to the model: torch 2.13 marks the user's instance that way.
    for name in set(vars(model)) - before:
        delattr(model, name)
    arm = model_arm(compiled, call)
    start = clock()
    with grad_mode(workload):
        arm()
    return CompiledArm(arm, clock() - start)


def grad_mode(mode: Mode) -> AbstractContextManager[None]:
    """Return what the workload runs under: no gradients while serving, the caller's own setting while training."""
    return torch.no_grad() if mode == "inference" else nullcontext()
