"""Greedy decoding as a check: a user sees the same tokens, or others only where eager itself cannot tell them apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..models.workload import Call
from .full_precision import call_wider, widened
from .results import Check
from .variants import fresh


@dataclass(frozen=True)
class Decoded:
    """tokens: (rows, prompt and new tokens). logits: for each new token its step's (rows, vocabulary)."""

    tokens: torch.Tensor
    logits: tuple[torch.Tensor, ...]

    @property
    def prompt(self) -> int:
        return self.tokens.shape[1] - len(self.logits)


def generates(model: nn.Module) -> bool:
    """Whether the model says that it can `generate` in the way of transformers."""
    says: Any = getattr(model, "can_generate", None)
    return callable(says) and bool(says()) and callable(getattr(model, "generate", None))


def decode(model: nn.Module, call: Call, steps: int) -> Decoded:
    """Return `steps` greedily chosen tokens after the call's own inputs; raises what `generate` raises."""
    given = fresh(call)
    kwargs = {
        name: value for name, value in given.kwargs.items() if isinstance(value, torch.Tensor) and name != "labels"
    }
    generate: Any = model.generate
    out = generate(
        *given.args,
        **kwargs,
        max_new_tokens=steps,
        do_sample=False,
        num_beams=1,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return Decoded(out.sequences.detach().clone(), tuple(step.detach().clone() for step in out.logits))


def decode_wider(model: nn.Module, call: Call, steps: int, dtype: torch.dtype) -> Decoded:
    """Return the same decoding computed in `dtype`."""
    args, kwargs = widened((call.args, dict(call.kwargs)), dtype)
    wide = Call(args, kwargs, call.weight, call.name)
    return call_wider(model, lambda inner: decode(inner, wide, steps), dtype)  # type: ignore[no-any-return]


def compare_tokens(name: str, eager: Decoded, swapped: Decoded, wider: Decoded | None, *, exact: bool) -> Check:
    """Return the check of two decodings. exact: no divergence is forgiven; else one within eager's own error is."""
    if eager.tokens.shape[0] != swapped.tokens.shape[0]:
        return Check(name, False, (), None, None, f"{swapped.tokens.shape[0]} rows, expected {eager.tokens.shape[0]}")
    places = [(row, _first_difference(eager.tokens[row], swapped.tokens[row])) for row in range(eager.tokens.shape[0])]
    diverged = [(row, place) for row, place in places if place is not None]
    width = min(eager.tokens.shape[1], swapped.tokens.shape[1])
    new = slice(eager.prompt, width)
    same = float((eager.tokens[:, new] == swapped.tokens[:, new]).double().mean()) if width > eager.prompt else 1.0
    if not diverged:
        return Check(name, True, (), None, same, f"{len(eager.logits)} greedy tokens equal, rows: {len(places)}")
    stories = [_judge_divergence(row, place, eager, swapped, wider, exact=exact) for row, place in diverged]
    passed = all(forgiven for forgiven, _ in stories)
    return Check(name, passed, (), None, same, "; ".join(story for _, story in stories[:4]))


def _judge_divergence(
    row: int, place: int, eager: Decoded, swapped: Decoded, wider: Decoded | None, *, exact: bool
) -> tuple[bool, str]:
    step = place - eager.prompt
    where = f"row {row} diverges at new token {step + 1}"
    if step < 0 or step >= len(eager.logits) or place >= swapped.tokens.shape[1]:
        return False, f"{where}: other length or prompt"
    logits = eager.logits[step][row].double()
    chosen, instead = int(eager.tokens[row, place]), int(swapped.tokens[row, place])
    margin = float(logits[chosen] - logits[instead])
    if exact or wider is None:
        why = "fp32 tokens must be equal" if exact else "no wider run to tell eager's own error"
        return False, f"{where}: {chosen} became {instead}, eager's margin {margin:.3g} ({why})"
    apart = _first_difference(eager.tokens[row], wider.tokens[row])
    # Logits answer to the same prefix only up to where the wider run itself chose another token.
    last = step if apart is None else min(step, apart - eager.prompt)
    last = min(last, len(wider.logits) - 1)
    error = float(
        (eager.logits[last][row].double() - wider.logits[last][row].double()).abs().nan_to_num(0.0, posinf=0.0).max()
    )
    return (
        margin <= error,
        f"{where}: {chosen} became {instead}, eager's margin {margin:.3g}, its own error {error:.3g}",
    )


def _first_difference(one: torch.Tensor, other: torch.Tensor) -> int | None:
    width = min(len(one), len(other))
    wrong = (one[:width] != other[:width].to(one.device)).nonzero()
    if len(wrong):
        return int(wrong[0])
    return width if len(one) != len(other) else None
