"""Answer each call of a graph that has a form for a mask that hides nothing: by that form, or by the one always right.

The special form answers a call only where this very call's mask was read and hides nothing. Reading means waiting for
the device, so where the last mask that is known did hide something, the general form answers at once; what the mask
was is heard at the next call. Which form answers depends on the masks of the calls so far, never on timing.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .rewrites.mask_choice import Condition

Form = Callable[..., Any]
Answer = Callable[[], bool]

# The special form is launched ahead of the answer once so many masks in a row have hidden nothing: a wrong guess costs
# a run, waiting ahead of the launch leaves the device idle for as long as a launch takes.
_TRUSTED_AFTER = 2


class Flags(Protocol):
    """Brings truth values from the device of a mask to the host."""

    def busy(self) -> bool:
        """Whether the device records what it is given for later: nothing can be read then."""

    def send(self, flag: torch.Tensor) -> Answer:
        """Set a bool scalar on its way behind what was launched so far; return what waits for it and gives it."""


class CudaFlags:
    """Flags of a CUDA device: a copy into pinned memory with an event behind it, on the calling stream."""

    def busy(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def send(self, flag: torch.Tensor) -> Answer:
        arrived = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=True)
        arrived.copy_(flag, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(flag.device))

        def answer() -> bool:
            event.synchronize()
            return bool(arrived)

        return answer


def flags_for(device: torch.device) -> Flags | None:
    """Return what brings flags from `device`; None where reading them waits for nothing, or there is no way around."""
    return CudaFlags() if device.type == "cuda" else None


@dataclass(frozen=True)
class _Seen:
    """A mask as it was when it was asked about. Writes that count no version (`.data`, a user's CUDA graph, a kernel
    of one's own) go unseen, so this may vouch for a mask that hides something and never for one that hides nothing.
    """

    mask: weakref.ref[torch.Tensor]
    version: int

    @staticmethod
    def of(mask: torch.Tensor) -> _Seen | None:
        """Return None of a tensor made in inference mode, whose writes nobody counts."""
        return None if mask.is_inference() else _Seen(weakref.ref(mask), mask._version)

    def is_still(self, mask: torch.Tensor) -> bool:
        return self.mask() is mask and self.version == mask._version


_Asked = tuple[Answer, _Seen | None]


class FormChoice:
    """A callable with the inputs and outputs of a graph that lets one of its two forms answer.

    special: right where `condition` holds. general: right always. flags: of the mask's device; None where it is read
    without waiting. ahead: whether a run of `special` may be thrown away, so that it can be launched on trust.
    """

    def __init__(
        self, condition: Condition, special: Form, general: Form, flags: Flags | None, *, ahead: bool = False
    ) -> None:
        self._condition = condition
        self._special = special
        self._general = general
        self._flags = flags
        self._ahead = ahead
        self._lock = threading.Lock()
        self._asked: _Asked | None = None
        self._hides: _Seen | None = None
        # Masks in a row that hid nothing, up to the last one known. Of the first call's nothing is known: it waits.
        self._shown = 1

    def __call__(self, *inputs: Any) -> Any:
        if self._flags is None:
            return (self._special if self._condition.holds(inputs) else self._general)(*inputs)
        if self._flags.busy():
            return self._general(*inputs)
        with self._lock:
            self._hear()
            hidden_lately = self._shown == 0
            if not (hidden_lately and self._is_known_to_hide(inputs)):
                asked = self._flags.send(self._condition.flag(inputs)), _Seen.of(inputs[self._condition.position])
                if hidden_lately:
                    self._asked = asked
            trusted = self._ahead and self._shown >= _TRUSTED_AFTER
        return self._general(*inputs) if hidden_lately else self._on_answer(inputs, asked, trusted)

    def _on_answer(self, inputs: tuple[Any, ...], asked: _Asked, trusted: bool) -> Any:
        made = self._special(*inputs) if trusted else None
        answer, seen = asked
        shows = answer()
        with self._lock:
            self._note(shows, seen)
        if not shows:
            return self._general(*inputs)
        return made if trusted else self._special(*inputs)

    def _is_known_to_hide(self, inputs: tuple[Any, ...]) -> bool:
        return self._hides is not None and self._hides.is_still(inputs[self._condition.position])

    def _hear(self) -> None:
        """Take in what came of the question that the last call left behind."""
        if self._asked is not None:
            (answer, seen), self._asked = self._asked, None
            self._note(answer(), seen)

    def _note(self, shows: bool, seen: _Seen | None) -> None:
        self._shown = self._shown + 1 if shows else 0
        self._hides = None if shows else seen
