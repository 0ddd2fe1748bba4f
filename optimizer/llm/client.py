"""Ask a model until it answers, its budget is spent, or asking is of no use: retries, rate limits, time-outs.

One client serves all tasks of a run and several threads. Once it has stopped it says why, and asks nothing more.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence

from .door import MAYBE_BILLED, PASSING, Asking, DoorError, Message, Reply
from .meter import BudgetSpent, Meter, Reservation

logger = logging.getLogger(__name__)

ANSWER_TOKENS = 8192
TRIES = 4
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class Stopped(Exception):
    """The client asks nothing more; the message says why, and what to do."""


class TooLongError(Exception):
    """The prompt does not fit the model; a shorter one may."""


class Client:
    """Asks one model. tries: of one request, before the server counts as unreachable for the rest of the run."""

    def __init__(
        self,
        door: Asking,
        meter: Meter,
        *,
        timeout_s: float = 180.0,
        answer_tokens: int = ANSWER_TOKENS,
        tries: int = TRIES,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self.meter = meter
        self._door, self._timeout_s = door, timeout_s
        self._answer_tokens, self._tries, self._first_pause_s = answer_tokens, tries, first_pause_s
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._quiet_until = 0.0
        self._reason: str | None = None
        self.trouble: str | None = None  # what the last request failed of, None once one was answered

    @property
    def stopped(self) -> str | None:
        """Why nothing more is asked, None while it may be."""
        return self._reason

    def stop(self, reason: str, *, trouble: bool = True) -> None:
        """Ask nothing more, and wake whoever waits; the first reason stands, and is said where it is a trouble."""
        with self._lock:
            if self._reason is None:
                self._reason = reason
                level = logging.WARNING if trouble else logging.INFO
                logger.log(level, "%s; the search goes on without the language model", reason)
        self._closing.set()

    def ask(self, messages: Sequence[Message], **note: str) -> Reply:
        """Return the model's reply. note: what the journal says of the request (task, strategy).

        Raises Stopped once nothing more is asked, TooLongError where only this prompt is at fault.
        """
        last: DoorError | None = None
        for number in range(self._tries):
            self._pause(number, last)
            reserved = self._reserve(messages, note)
            try:
                reply = self._door.complete(
                    messages, max_tokens=reserved.max_tokens, timeout_s=min(self._timeout_s, reserved.seconds)
                )
            except DoorError as error:
                self._account_for(error, reserved)
                if error.trouble == "too long":
                    raise TooLongError(str(error)) from None
                if error.trouble not in PASSING:
                    self.stop(str(error))
                    raise Stopped(str(error)) from None
                last = error
            else:
                self.trouble = None
                self.meter.settle(reserved, reply.prompt_tokens, reply.completion_tokens, outcome="answered")
                return reply
        reason = f"{last}; {self._tries} tries in a row failed"
        self.stop(reason)
        raise Stopped(reason)

    def _reserve(self, messages: Sequence[Message], note: dict[str, str]) -> Reservation:
        if self._reason is not None:
            raise Stopped(self._reason)
        try:
            return self.meter.reserve(messages, self._answer_tokens, note)
        except BudgetSpent as spent:
            reason = f"budget: {spent}"
            self.stop(reason, trouble=False)
            raise Stopped(reason) from None

    def _account_for(self, error: DoorError, reserved: Reservation) -> None:
        self.trouble = str(error)
        if error.trouble in MAYBE_BILLED:
            self.meter.settle(reserved, None, None, outcome=error.trouble)
        else:
            self.meter.release(reserved, outcome=error.trouble)
        if error.trouble == "busy":  # a rate limit is everybody's: nobody asks before it is over
            wait = min(error.after_s if error.after_s is not None else self._first_pause_s, LONGEST_PAUSE_S)
            with self._lock:
                self._quiet_until = max(self._quiet_until, time.monotonic() + wait)

    def _pause(self, number: int, last: DoorError | None) -> None:
        """Wait before a retry, longer each time, with some chance in it so that threads do not ask in step."""
        wait = 0.0
        if last is not None:
            wait = min(self._first_pause_s * 2 ** (number - 1), LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
        with self._lock:
            wait = max(wait, self._quiet_until - time.monotonic())
        if wait > 0:
            self._closing.wait(wait)
