"""What is made of a graph for one layout of its inputs: when it is worth making, what is kept, what is given up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any, Generic, TypeVar

import torch

Key = tuple[Any, ...]
Made = TypeVar("Made")

# Things kept for one FX graph, the last used ones.
MOST_KEPT = 8
# Layouts waiting to be met a second time. A text that grows token by token meets each only once.
MOST_MET = 64

_MEETS_BEFORE_MAKING = 2

FIRST_MEETING = "a layout met for the first time"


def layout(inputs: Sequence[Any], without: Collection[int] = ()) -> Key:
    """Return shapes, strides, dtypes and devices of the inputs, and what is no tensor as it is. without: positions."""
    return (
        torch.is_inference_mode_enabled(),
        *[
            (v.shape, v.stride(), v.dtype, v.device) if isinstance(v, torch.Tensor) else v
            for i, v in enumerate(inputs)
            if i not in without
        ],
    )


class Layouts(Generic[Made]):
    """Keeps what was made for the layouts used last. A layout is worth making something for when it comes again."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, Made] = OrderedDict()
        self._met: OrderedDict[Key, int] = OrderedDict()
        self._failed: dict[Key, str] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Made | None:
        """Return what was made for the layout, which thereby is the last used one."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def why_not_now(self, key: Key) -> str | None:
        """Count a meeting with a layout that has nothing; return why nothing is to be made for it yet, or ever."""
        if key in self._failed:
            return self._failed[key]
        times = self._met.pop(key, 0) + 1
        if times < _MEETS_BEFORE_MAKING:
            self._met[key] = times
            while len(self._met) > MOST_MET:
                self._met.popitem(last=False)
            return FIRST_MEETING
        return None

    def keep(self, key: Key, made: Made) -> Made:
        self._kept[key] = made
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return made

    def drop(self, key: Key) -> None:
        """Forget what was made for the layout: it is worth making anew at once."""
        del self._kept[key]
        self._met[key] = _MEETS_BEFORE_MAKING - 1

    def give_up(self, key: Key, reason: str) -> str:
        """Make nothing for the layout any more; return the reason."""
        if len(self._failed) >= MOST_MET:
            self._failed.clear()
        self._failed[key] = reason
        return reason
