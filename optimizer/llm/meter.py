"""Count what a language model costs, and stop before a limit is passed: money, tokens, requests, time.

A request reserves the most it can cost before it is sent, a prompt's token being a byte at least, and its answer is
held to what is left; what it did cost then takes the reservation's place. Every step is a line of a journal in the run,
so that a run continued after any kind of death goes on with what is left, a request then under way counted in full.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...models.errors import RecordError, ResourceExhausted, SpecError
from ...models.llm_budget import LlmBudget, LlmPrice
from .door import Message

# What a chat format adds to a message, and to the whole, in tokens at most.
_AROUND_MESSAGE = 16
# An answer shorter than this is no kernel.
LEAST_ANSWER = 256
# For so much room it is worth to wait until requests under way give back what they do not use.
_DECENT_ANSWER = 2048


class BudgetSpent(Exception):
    """The next request could pass a limit; the message says which, and how much is spent."""


@dataclass(frozen=True)
class Spent:
    """What was used so far. usd: None where the price is not known. seconds: since the first request."""

    usd: float | None
    tokens: int
    requests: int
    seconds: float
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __str__(self) -> str:
        money = f"{self.usd:.4f} usd, " if self.usd is not None else ""
        return f"{money}{self.tokens} tokens, {self.requests} requests, {self.seconds:.0f} s"


@dataclass(frozen=True)
class Reservation:
    """One request that may be sent. max_tokens: the longest answer it may ask for. seconds: the longest it may take."""

    number: int
    prompt_tokens: int
    max_tokens: int
    seconds: float


class Meter:
    """The account of one run; safe to use from several threads.

    price: None where nobody knows it, which a budget of money refuses (SpecError). journal: None keeps none.
    """

    def __init__(
        self,
        budget: LlmBudget,
        price: LlmPrice | None,
        journal: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if budget.usd is not None and price is None:
            raise SpecError(
                f"--llm-budget {budget}: the price of this model is not known; give it as --llm-price IN,OUT "
                "(US dollars a million tokens), or limit tokens or requests instead"
            )
        self.budget, self.price = budget, price
        self._journal, self._clock = journal, clock
        self._changed = threading.Condition()
        self._open: dict[int, Reservation] = {}
        self._prompt = self._completion = self._requests = 0
        self._before_s = 0.0
        self._first: float | None = None
        if journal is not None and journal.exists():
            self._read(journal)

    def spent(self) -> Spent:
        """Return what is settled; requests under way count as requests and as nothing else yet."""
        with self._changed:
            return self._spent()

    def reserve(self, messages: Sequence[Message], wanted: int, note: dict[str, str]) -> Reservation:
        """Return a reservation for one request with an answer of at most `wanted` tokens.

        Waits for requests under way where what they give back may be enough; raises BudgetSpent where nothing will be.
        """
        prompt = most_tokens(messages)
        with self._changed:
            while True:
                problem, allowed, seconds = self._room(prompt, wanted)
                if problem is None and (allowed >= min(wanted, _DECENT_ANSWER) or not self._open):
                    break
                if problem is not None and (not self._open or self._final()):
                    raise BudgetSpent(problem)
                self._changed.wait(timeout=1.0)
            self._first = self._clock() if self._first is None else self._first
            self._requests += 1
            made = Reservation(self._requests, prompt, allowed, seconds)
            self._open[made.number] = made
            self._write(event="sent", number=made.number, prompt_tokens=prompt, max_tokens=allowed, **note)
            return made

    def settle(self, made: Reservation, prompt: int | None, completion: int | None, **note: Any) -> None:
        """Replace a reservation by what the server counted; where it counted nothing, by all that was reserved."""
        prompt = made.prompt_tokens if prompt is None else prompt
        completion = made.max_tokens if completion is None else completion
        with self._changed:
            del self._open[made.number]
            self._prompt += prompt
            self._completion += completion
            used = {"prompt_tokens": prompt, "completion_tokens": completion, "usd": self._usd(prompt, completion)}
            self._write(event="settled", number=made.number, seconds=round(self._seconds(), 3), **used, **note)
            self._changed.notify_all()

    def release(self, made: Reservation, **note: Any) -> None:
        """Give a reservation back: the request was refused, and nothing is billed for it."""
        self.settle(made, 0, 0, **note)

    def _room(self, prompt: int, wanted: int) -> tuple[str | None, int, float]:
        """Return why nothing more can be sent (None where it can), the longest answer and the longest wait."""
        now = self._spent()
        held_prompt = sum(r.prompt_tokens for r in self._open.values())
        held_completion = sum(r.max_tokens for r in self._open.values())
        allowed, seconds = wanted, float("inf")
        limits = self.budget
        if limits.requests is not None and self._requests >= limits.requests:
            return f"{self._requests} of {limits.requests} requests are used up", 0, 0.0
        if limits.seconds is not None:
            seconds = limits.seconds - now.seconds
            if seconds <= 0:
                return f"{limits.seconds:g} s are over", 0, 0.0
        if limits.tokens is not None:
            allowed = min(allowed, limits.tokens - now.tokens - held_prompt - held_completion - prompt)
            if allowed < LEAST_ANSWER:
                return f"{now.tokens} of {limits.tokens} tokens are used, too few are left for another request", 0, 0.0
        if limits.usd is not None and self.price is not None:
            held = self.price.usd(held_prompt + prompt, held_completion)
            left = limits.usd - (now.usd or 0.0) - held
            if self.price.completion > 0:
                allowed = min(allowed, int(left / self.price.completion * 1e6))
            if left < 0 or allowed < LEAST_ANSWER:
                return f"{now.usd:.4f} of {limits.usd:g} usd are spent, another request could pass the limit", 0, 0.0
        return None, allowed, seconds

    def _final(self) -> bool:
        """Whether no request under way can give back what is lacking: requests and time do not come back."""
        limits = self.budget
        return (limits.requests is not None and self._requests >= limits.requests) or (
            limits.seconds is not None and self._seconds() >= limits.seconds
        )

    def _spent(self) -> Spent:
        tokens = self._prompt + self._completion
        usd = self._usd(self._prompt, self._completion)
        return Spent(usd, tokens, self._requests, self._seconds(), self._prompt, self._completion)

    def _usd(self, prompt: int, completion: int) -> float | None:
        return self.price.usd(prompt, completion) if self.price is not None else None

    def _seconds(self) -> float:
        return self._before_s + (self._clock() - self._first if self._first is not None else 0.0)

    def _write(self, **line: Any) -> None:
        if self._journal is None:
            return
        try:
            with self._journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"at": round(time.time(), 3), **line}) + "\n")
        except OSError as error:
            raise ResourceExhausted(f"{self._journal}: cannot be written ({error.strerror}); free space") from error

    def _read(self, journal: Path) -> None:
        whole, _, half = journal.read_bytes().rpartition(b"\n")
        if half:  # of a death while it was written; what it was about is counted in full below
            os.truncate(journal, len(whole) + 1 if whole else 0)
        under_way: dict[int, tuple[int, int]] = {}
        for at, line in enumerate(whole.decode(errors="replace").splitlines(), start=1):
            try:
                body = json.loads(line)
                request, sent = int(body["number"]), body["event"] == "sent"
                used = int(body["prompt_tokens"]), int(body["max_tokens" if sent else "completion_tokens"])
                seconds = float(body.get("seconds", 0.0))
            except (ValueError, KeyError, TypeError) as error:
                raise RecordError(f"{journal}:{at}: no line of an account ({error}); mend or remove it") from error
            if sent:
                under_way[request] = used
                self._requests = max(self._requests, request)
            else:
                under_way.pop(request, None)
                self._prompt, self._completion = self._prompt + used[0], self._completion + used[1]
                self._before_s = max(self._before_s, seconds)
        for prompt, completion in under_way.values():
            self._prompt, self._completion = self._prompt + prompt, self._completion + completion


def most_tokens(messages: Sequence[Message]) -> int:
    """Return more tokens than the messages can have: every token stands for a byte at least."""
    return sum(len(m["content"].encode()) + _AROUND_MESSAGE for m in messages) + _AROUND_MESSAGE
