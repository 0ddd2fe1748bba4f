"""One captured graph, swapped and rewritten, as something that runs: which of its forms answers is decided a call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from .cuda_graphs import may_be_thrown_away
from .form_choice import FormChoice, flags_for
from .results import Tail
from .rewrites.packed_use import PackedUse, packed_uses
from .rewrites.parameter_packs import ParameterPacks
from .rewrites.plan import Forms
from .tails import COMPILING, Compiled, TailState, run_through

Build = Callable[[], Compiled]


class Program:
    """Runs the special form where its condition is known to hold, the general one else (`FormChoice`), and the graph
    without rewrites where parameters that it reads packed cannot be brought back; this last is counted in `fallbacks`.

    plain: makes the graph without rewrites, asked for at most once.
    """

    def __init__(
        self,
        forms: Forms,
        tail: Tail,
        inputs: Sequence[Any],
        state: TailState,
        packs: ParameterPacks | None,
        plain: Build,
        *,
        gradients: bool,
    ) -> None:
        self._packs = packs
        self._plain: Compiled | Build = plain
        self._is_plain_made = False
        self.fallbacks: Counter[str] = Counter()
        # Sizes that vary have to be compiled while Dynamo looks on, whose symbols they are. All else waits for its
        # first call: of two forms often only one is ever needed, and Inductor takes its time.
        symbolic = any(isinstance(v, torch.SymInt) for v in inputs)

        def form(gm: fx.GraphModule) -> Compiled:
            if tail in COMPILING and not symbolic:
                return _Later(lambda real: run_through(gm, tail, real, state, gradients=gradients))
            return run_through(gm, tail, inputs, state, gradients=gradients)

        self._answer: Compiled = form(forms.general)
        uses = list(packed_uses(forms.general))
        if forms.special is not None:
            condition, gm = forms.special
            flags = flags_for(inputs[condition.position].device)
            ahead = flags is not None and not gradients and may_be_thrown_away(gm)
            self._answer = FormChoice(condition, form(gm), self._answer, flags, ahead=ahead)
            uses += packed_uses(gm)
        self._uses: tuple[PackedUse, ...] = tuple(uses)
        self._places = tuple(
            dict.fromkeys((i, p) for u in uses for i, p in zip(u.positions, u.pack.pointers, strict=True))
        )

    def __call__(self, *inputs: Any) -> Any:
        for position, pointer in self._places:
            if inputs[position].data_ptr() != pointer:
                if not self._bring_back(inputs):
                    self.fallbacks["packed parameters are not what they were"] += 1
                    return self._without_rewrites()(*inputs)
                break
        return self._answer(*inputs)

    def _bring_back(self, inputs: tuple[Any, ...]) -> bool:
        packs = self._packs
        return packs is not None and all(packs.ensure(use.pack, use.parameters(inputs)) for use in self._uses)

    def _without_rewrites(self) -> Compiled:
        if not self._is_plain_made:
            self._plain = self._plain()
            self._is_plain_made = True
        return self._plain


class _Later:
    """A form that is built from the inputs of its first call."""

    def __init__(self, build: Callable[[Sequence[Any]], Compiled]) -> None:
        self._build = build
        self._made: Compiled | None = None

    def __call__(self, *inputs: Any) -> Any:
        if self._made is None:
            self._made = self._build(inputs)
        return self._made(*inputs)
