"""Build what a model is told: the contract, the task, this machine, what was tried, and parts of a playbook."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from ...extractor.task import Task
from ...models.hide_keys import scrub
from ...profiler.recording import Limits
from ..attempt import Attempt
from ..decision import headroom
from ..verdict import Race
from .door import Message
from .strategy import Move

MOST_BYTES = 48_000
_TRIED_SHOWN = 12
_REASON_SHOWN = 240
_TAGS = re.compile(r"<!--\s*when:\s*([a-z ]+?)\s*-->\n")

CONTRACT = """\
You write one kernel: a single Python file that replaces a region of a PyTorch model. A judge compiles it, checks it
against a double-precision oracle on shapes, strides and values you do not see, and times it against eager PyTorch and
torch.compile. It is kept only if it is right everywhere and faster. Nothing else counts.

The file defines `def kernel({arguments})` and returns {returns} of the dtype, shape and strides the reference gives,
in new memory. No network, no files, no threads or processes of its own, no state between calls.
Optional, as literals at top level: CONSTRAINTS = {{"contiguous": ["name of an input", ...]}}. Optional packing of
weights: `def prepare({arguments})` with STATIC_WEIGHTS = True, whose result reaches `kernel(..., *, packed)`.

Answer with exactly one fenced block and little else: ```python with the whole file, or ```diff with a unified diff
against the file shown as the parent."""


@dataclass(frozen=True)
class Setting:
    """What is the same for every prompt of a task. reference: text of reference.py."""

    task: Task
    reference: str
    limits: Limits
    baseline: Race


def messages(setting: Setting, move: Move, history: Sequence[Attempt], *, short: bool = False) -> list[Message]:
    """Return the prompt for one move. short: without history and playbook, for a model that could not take it all."""
    task = setting.task
    contract = CONTRACT.format(
        arguments=", ".join(task.inputs),
        returns="the output tensor" if task.outputs == 1 else f"a tuple of {task.outputs} tensors",
    )
    parts = [_task(setting), _machine(setting), _move(move)]
    room = MOST_BYTES - sum(len(p) for p in parts)
    if not short:
        tried = _tried(history)
        parts.insert(2, tried)
        parts.insert(3, playbook(conditions(setting), room - len(tried)))
    user = "\n\n".join(part for part in parts if part)
    return [{"role": "system", "content": contract}, {"role": "user", "content": scrub(user)}]


def conditions(setting: Setting) -> frozenset[str]:
    """Return which sections of the playbook hold: the device, and what bounds the task by its figures."""
    task, limits = setting.task, setting.limits
    found = {task.device.partition(":")[0], "compute" if task.kind == "anchor" else "memory"}
    calls = sum(case.calls for case in task.cases)
    call_us = task.eager_us / calls if calls else task.eager_us
    if call_us < 10 * limits.launch_us:
        found |= {"latency"} if "cpu" in found else {"launch"}
    return frozenset(found)


def playbook(holding: frozenset[str], room: int) -> str:
    """Return the sections whose tags all hold, in order, as long as they fit into `room` bytes."""
    text = ""
    for tags, section in _sections():
        if tags <= holding and len(text) + len(section) <= room:
            text += section
    return text


@cache
def _sections() -> tuple[tuple[frozenset[str], str], ...]:
    whole = (resources.files(__package__.rpartition(".")[0]) / "playbook.md").read_text(encoding="utf-8")
    found = []
    for section in re.split(r"^(?=## )", whole, flags=re.MULTILINE)[1:]:
        match = _TAGS.search(section)
        found.append((frozenset(match[1].split()) if match else frozenset(), _TAGS.sub("", section)))
    return tuple(found)


def _task(setting: Setting) -> str:
    task = setting.task
    lines = ["# The task", f"Region `{task.name}`: {' '.join(task.ops)}, on {task.device}, {len(task.sites)} place(s)."]
    lines += [
        f"- in {site.module or 'the model'} ({site.module_class}), from the line: {site.source.strip()}"
        for site in task.sites[:3]
    ]
    lines += ["", "Reference:", "```python", _reference_alone(setting.reference), "```", "Recorded shapes:"]
    for case in task.cases:
        shown = ", ".join(
            f"{s.name} {s.dtype.removeprefix('torch.')}{list(s.shape)} strides {list(s.stride)} {s.role}"
            for s in case.inputs
        )
        lines.append(f"- {case.name}: {case.calls} calls a step, weight {case.weight:g}: {shown}")
    if task.size_symbols:
        lines.append(f"{len(task.size_symbols)} size(s) vary; other sizes reach the kernel too, so assume none.")
    return "\n".join([*lines, *task.notes])


def _reference_alone(source: str) -> str:
    """Return the reference without the code that makes inputs, which a prompt says in fewer words."""
    return source.partition("\n# Recorded shapes")[0].rstrip()


def _machine(setting: Setting) -> str:
    task, limits = setting.task, setting.limits
    rates = ", ".join(f"{name} {rate:.3g} TFLOP/s" for name, rate in limits.matmul_tflop_s.items())
    rivals = ", ".join(f"{a.name} {a.median_us:.1f} us" for a in setting.baseline.arms)
    return (
        "# This machine, measured\n"
        f"Copies at {limits.copy_gb_s:.0f} GB/s, matmul {rates}; a launch takes {limits.launch_us:.1f} us; "
        f"last-level cache {limits.cache_bytes / 2**20:.0f} MiB.\n"
        f"A step moves {task.bytes} bytes and does {task.flops} FLOPs here: eager {task.eager_us:.0f} us, "
        f"floor {task.floor_us:.0f} us. One call on {setting.baseline.case}: {rivals}."
    )


def _tried(history: Sequence[Attempt]) -> str:
    if not history:
        return "# Tried so far\nNothing."
    lines = [f"# Tried so far ({len(history)}, the latest {min(len(history), _TRIED_SHOWN)} shown)"]
    lines += [f"- {a.source_hash[:8]} by {a.proposer}: {outcome(a)}" for a in history[-_TRIED_SHOWN:]]
    return "\n".join(lines)


def outcome(attempt: Attempt) -> str:
    """Return in one line how an attempt ended, with the judge's reason or times."""
    verdict = attempt.verdict
    if verdict is None:
        return "interrupted"
    if not verdict.accepted:
        return f"rejected at {verdict.stage}: {' '.join((verdict.reason or '').split())[:_REASON_SHOWN]}"
    won, us = verdict.speedup, attempt.median_us
    speed = f"{won.median:.2f}x the best rival ({won.low:.2f} to {won.high:.2f})" if won else "untimed"
    return f"accepted, {speed}{f', {us:.1f} us a call' if us else ''}{', the best so far' if attempt.kept else ''}"


def reached(setting: Setting, attempt: Attempt) -> str:
    """Return how an attempt ended and, where it was timed, what it draws from this machine."""
    task, said = setting.task, outcome(attempt)
    slack = headroom(task, setting.baseline, attempt.verdict) if attempt.accepted and attempt.median_us else None
    if slack is None:
        return said
    us = slack * task.floor_us
    drawn = f"{1e-3 * task.bytes / us:.3g} of {setting.limits.copy_gb_s:.3g} GB/s"
    if task.kind == "anchor":
        drawn += f", {1e-6 * task.flops / us:.3g} TFLOP/s"
    return f"{said}; {slack:.2f} times the floor, {drawn}"


def _move(move: Move) -> str:
    lines = ["# What to do now", move.instruction]
    for title, source, said in move.shown:
        lines += ["", f"{title} ({said}):", "```python", source.rstrip(), "```"]
    return "\n".join(lines)
