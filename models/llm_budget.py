"""What a language model may cost at most: money, tokens, requests and time, hard limits each; and a token's price."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Self

from .record import Record

_THOUSANDS = {"": 1, "k": 1_000, "m": 1_000_000}
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"([0-9]*\.?[0-9]+)"


@dataclass(frozen=True)
class LlmBudget(Record):
    """Limits of one run; None where there is none.

    usd: US dollars. tokens: prompt and completion together. requests: every try that leaves this machine, retries
    included. seconds: from the first request on.

        LlmBudget.parse("2.50usd, 500k tokens, 100 requests, 10m")
    """

    usd: float | None = None
    tokens: int | None = None
    requests: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the budget that a comma-separated text means; raise ValueError for a part that means nothing."""
        found: dict[str, float] = {}
        for part in str(text).lower().split(","):
            name, value = _part(part.strip())
            if name in found or not math.isfinite(value) or value <= 0:
                raise ValueError(part)
            found[name] = value
        tokens, requests = (int(found[n]) if n in found else None for n in ("tokens", "requests"))
        return cls(found.get("usd"), tokens, requests, found.get("seconds"))

    def __str__(self) -> str:
        """Return a text that `parse` reads back."""
        parts = (
            (self.usd, f"{self.usd}usd"),
            (self.tokens, f"{self.tokens} tokens"),
            (self.requests, f"{self.requests} requests"),
            (self.seconds, f"{self.seconds}s"),
        )
        return ", ".join(text for value, text in parts if value is not None)


@dataclass(frozen=True)
class LlmPrice(Record):
    """US dollars a million tokens, of the prompt and of the answer."""

    prompt: float
    completion: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the price that "3,15" means: dollars a million tokens in, and out; raise ValueError otherwise."""
        into, out = (float(part) for part in str(text).split(","))
        if not (0 <= into < math.inf and 0 <= out < math.inf):
            raise ValueError(text)
        return cls(into, out)

    def __str__(self) -> str:
        return f"{self.prompt:g},{self.completion:g}"

    def usd(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return what so many tokens cost."""
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6


def _part(text: str) -> tuple[str, float]:
    if match := re.fullmatch(rf"\$\s*{_NUMBER}|{_NUMBER}\s*(?:usd|\$)", text):
        return "usd", float(match[1] or match[2])
    if match := re.fullmatch(rf"{_NUMBER}\s*([km]?)\s*tok(?:ens?)?", text):
        return "tokens", float(round(float(match[1]) * _THOUSANDS[match[2]]))
    if match := re.fullmatch(r"([0-9]+)\s*req(?:uests?)?", text):
        return "requests", float(match[1])
    if match := re.fullmatch(rf"{_NUMBER}\s*([smh])", text):
        return "seconds", float(match[1]) * _SECONDS[match[2]]
    raise ValueError(text)
