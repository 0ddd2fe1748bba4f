"""Is the patched model still the model? Run both on several inputs and compare everything they return or write.

`expect` records what the plain model does, once; `check` holds a swap against it, as often as wanted; `bisect` finds
the swap that breaks it. The user's model is neither copied nor changed; buffers it writes are put back between runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol

import torch
from torch import nn

from ..models.errors import ModelRaised
from ..models.workload import Call
from .full_precision import call_wider, widened, wider_dtype
from .generation import Decoded, compare_tokens, decode, decode_wider, generates
from .leaf_check import Agreement, Judged, agreement, compare
from .model_state import put_back, same_values, seeded
from .output_tree import Leaf, flatten, snapshot, structure_difference
from .results import Check
from .variants import fresh, variants

# Puts the swap into the model and takes it out again. A module or function it yields is called in the model's place.
Swap = Callable[[], AbstractContextManager[Any]]
Leaves = tuple[Leaf, ...]


@dataclass(frozen=True)
class Case:
    """One verification input and what the plain model made of it.

    wider: path to value one precision up; note: why there is none.
    """

    call: Call
    eager: Leaves
    wider: dict[str, torch.Tensor]
    note: str | None


@dataclass(frozen=True)
class Expected:
    """What a model does unpatched. decoded: greedy tokens of the first call, None where the model does not generate."""

    model: nn.Module
    cases: tuple[Case, ...]
    dtype: torch.dtype
    decoded: Decoded | None
    steps: int
    seed: int


@dataclass(frozen=True)
class Bisection:
    """culprits: tasks whose swap breaks the check, on top of the innocent ones. plain_passes: it holds with none."""

    culprits: tuple[str, ...]
    plain_passes: bool


class Switchable(Protocol):
    """A patch whose tasks can be turned on and off."""

    def enable(self, fingerprint: str, on: bool, /) -> object: ...


def verify(
    model: nn.Module, apply: Swap, calls: Sequence[Call], *, seed: int = 0, derive: bool = True, steps: int = 16
) -> tuple[Check, ...]:
    """Return one check for each recorded and derived input, and one for greedy decoding where the model generates.

    The model must be unpatched; `apply` is entered once. derive: also try another batch, other lengths and padding,
    made from the heaviest call. steps: tokens to decode, 0 for none.
    """
    return check(expect(model, calls, seed=seed, derive=derive, steps=steps), apply)


def expect(model: nn.Module, calls: Sequence[Call], *, seed: int = 0, derive: bool = True, steps: int = 16) -> Expected:
    """Return what the unpatched model does on `calls`; raise ModelRaised when it refuses one of them."""
    dtype = wider_dtype(model, [(call.args, dict(call.kwargs)) for call in calls])
    heaviest = max(calls, key=lambda call: call.weight)
    cases: list[Case] = []
    for call in calls:
        seen: dict[int, Leaves] = {id(call): _recorded(model, call, seed)}
        chosen = list(variants(model, call, _acceptance(model, seed, seen))) if derive and call is heaviest else [call]
        cases += [_case(model, made, seen[id(made)], dtype, seed) for made in chosen]
    decoded = _decoded(model, heaviest, steps) if steps and generates(model) else None
    return Expected(model, tuple(cases), dtype, decoded, steps, seed)


def check(expected: Expected, apply: Swap) -> tuple[Check, ...]:
    """Return the checks of the swap that `apply` puts in, in the order of the expected cases, greedy decoding last."""
    model, decoded, heaviest = expected.model, None, _heaviest(expected)
    with apply() as entered:
        runner = entered if isinstance(entered, nn.Module | FunctionType) else model
        swapped = [_attempt(model, runner, case.call, expected.seed) for case in expected.cases]
        if expected.decoded is not None:
            decoded = _decoded(runner if isinstance(runner, nn.Module) else model, heaviest, expected.steps)
    checks = [_judge(case, got) for case, got in zip(expected.cases, swapped, strict=True)]
    if expected.decoded is not None:
        checks.append(_judge_tokens(expected, decoded, f"{heaviest.name}: generate"))
    return tuple(checks)


def bisect(patch: Switchable, passes: Callable[[], bool], tasks: Sequence[str]) -> Bisection:
    """Return the tasks (fingerprints) that make `passes` false, turned on one by one on top of those that held.

    Ends with the culprits off and all others on.
    """
    for task in tasks:
        patch.enable(task, False)
    if not passes():
        return Bisection((), plain_passes=False)
    culprits = []
    for task in tasks:
        patch.enable(task, True)
        if not passes():
            patch.enable(task, False)
            culprits.append(task)
    return Bisection(tuple(culprits), plain_passes=True)


def _heaviest(expected: Expected) -> Call:
    return max((case.call for case in expected.cases), key=lambda call: call.weight)


def _recorded(model: nn.Module, call: Call, seed: int) -> Leaves:
    try:
        return _observe(model, model, call, seed)
    except Exception as error:  # the user's forward may raise anything
        raise ModelRaised(f"{call.name}: the unpatched model raised {_line(error)}") from error


def _acceptance(model: nn.Module, seed: int, seen: dict[int, Leaves]) -> Callable[[Call], bool]:
    """Return a test of derived inputs that keeps what eager made of those it took."""

    def accepts(call: Call) -> bool:
        if id(call) not in seen:
            try:
                seen[id(call)] = _observe(model, model, call, seed)
            except Exception:  # the user's forward says in its own way that an input does not fit
                return False
        return True

    return accepts


def _case(model: nn.Module, call: Call, eager: Leaves, dtype: torch.dtype, seed: int) -> Case:
    try:
        return Case(call, eager, _observe_wider(model, call, dtype, seed), None)
    except Exception as error:  # an op for one dtype only, or no memory for a wide copy; the check says so
        return Case(call, eager, {}, f"no {_short(dtype)} run ({_line(error)}), compared with eager alone")


def _attempt(model: nn.Module, runner: Callable[..., Any], call: Call, seed: int) -> Leaves | str:
    try:
        return _observe(model, runner, call, seed)
    except Exception as error:  # kernels are untrusted code; what they raise is the finding
        return f"the patched model raised {_line(error)}"


def _observe(model: nn.Module, runner: Callable[..., Any], call: Call, seed: int) -> Leaves:
    """Run once on copies of the inputs; return the output's leaves, then the inputs and buffers that were written."""
    given = fresh(call)
    inputs = (given.args, dict(given.kwargs))
    before = {leaf.path: leaf for leaf in snapshot(inputs, "inputs")}
    with put_back(model) as written, seeded(model, seed), torch.no_grad():
        output = snapshot(runner(*given.args, **given.kwargs))
        after = snapshot(inputs, "inputs")
        return output + tuple(leaf for leaf in after if _changed(before.get(leaf.path), leaf)) + written()


def _changed(before: Leaf | None, after: Leaf) -> bool:
    if before is None or structure_difference((before,), (after,)):
        return True
    return before.tensor is not None and after.tensor is not None and not same_values(before.tensor, after.tensor)


def _observe_wider(model: nn.Module, call: Call, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    given = fresh(call)
    args, kwargs = widened((given.args, dict(given.kwargs)), dtype)
    with put_back(model), seeded(model, seed), torch.no_grad():
        output = call_wider(model, lambda inner: inner(*args, **kwargs), dtype)
    leaves = (*flatten(output), *flatten((args, kwargs), "inputs"))
    return {leaf.path: leaf.tensor for leaf in leaves if leaf.tensor is not None}


def _judge(case: Case, got: Leaves | str) -> Check:
    if isinstance(got, str):
        return Check(case.call.name, False, (), None, None, got)
    difference = structure_difference(case.eager, got)
    if difference:
        return Check(case.call.name, False, (), None, None, difference)
    pairs = [(one, other) for one, other in zip(case.eager, got, strict=True) if one.tensor is not None]
    judged = [compare(one, other, _yardstick(case, one)) for one, other in pairs]
    logits = next(((one, other) for one, other in pairs if _is_logits(one, len(pairs))), None)
    agreed = agreement(*logits, _yardstick(case, logits[0])) if logits else None
    leaves = tuple(j.check for j in judged)
    passed = all(leaf.passed for leaf in leaves)
    detail = "; ".join((*_failures(judged), *_summary(judged, agreed), *((case.note,) if case.note else ())))
    kl, top1 = (agreed.kl, agreed.top1) if agreed else (None, None)
    return Check(case.call.name, passed, leaves, kl, top1, detail, bitwise=all(j.bitwise for j in judged))


def _yardstick(case: Case, leaf: Leaf) -> torch.Tensor | None:
    wide = case.wider.get(leaf.path)
    return wide if wide is not None and leaf.tensor is not None and wide.shape == leaf.tensor.shape else None


def _is_logits(leaf: Leaf, count: int) -> bool:
    """Whether arg-max over the last dim means a prediction: a leaf named so, or the only leaf of a plain classifier."""
    tensor = leaf.tensor
    if tensor is None or not tensor.is_floating_point() or tensor.ndim < 2 or tensor.shape[-1] < 2:
        return False
    return leaf.path.rpartition(".")[2].endswith("logits") or (leaf.path == "output" and count == 1)


def _failures(judged: list[Judged]) -> list[str]:
    failed = [f"{j.check.path}: {j.reason}" for j in judged if j.reason]
    return failed[:3] + ([f"and {len(failed) - 3} more leaves"] if len(failed) > 3 else [])


def _summary(judged: list[Judged], agreed: Agreement | None) -> Iterator[str]:
    if not judged:
        return
    worst = max(judged, key=lambda j: j.check.error).check
    same = sum(j.bitwise for j in judged)
    yield f"{len(judged)} leaves, {same} equal bit for bit"
    yield f"worst error {worst.error:.3g} (eager {worst.eager_error:.3g}) at {worst.path}"
    if agreed:
        own = "" if agreed.eager_kl is None else f" (eager {agreed.eager_kl:.3g})"
        yield f"KL {agreed.kl:.3g}{own}, top-1 equal {agreed.top1:.2%}"


def _decoded(model: nn.Module, call: Call, steps: int) -> Decoded | None:
    try:
        with put_back(model), torch.no_grad():
            return decode(model, call, steps)
    except (
        Exception
    ):  # `generate` refuses some forward inputs; a patched model that raises where eager did not is judged below
        return None


def _judge_tokens(expected: Expected, decoded: Decoded | None, name: str) -> Check:
    assert expected.decoded is not None
    if decoded is None:
        return Check(name, False, (), None, None, "the patched model's generate raised where eager's did not")
    exact = expected.dtype == torch.float64
    first = compare_tokens(name, expected.decoded, decoded, None, exact=exact)
    if first.passed or exact:
        return first
    with put_back(expected.model), torch.no_grad():
        wider = decode_wider(expected.model, _heaviest(expected), expected.steps, expected.dtype)
    return compare_tokens(name, expected.decoded, decoded, wider, exact=False)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.float64: "fp64"}[dtype]
