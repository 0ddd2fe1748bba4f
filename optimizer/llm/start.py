"""Begin to ask a language model as a run's settings say, or say why it cannot be asked."""

from __future__ import annotations

from pathlib import Path

from ...models.settings import Settings
from .client import Client
from .door import Door
from .meter import Meter
from .service import LlmService


def check_llm(settings: Settings) -> None:
    """Refuse settings that could not hold, before any work is done; nothing is sent.

    Raises SpecError for a budget of money where no price is known, EnvironmentMissing where LiteLLM is not installed.
    """
    if settings.llm is not None:
        _meter(Door(settings.llm, settings.api_base), settings, None)


def start_llm(settings: Settings, journal: Path) -> LlmService | None:
    """Return the service for a run, None where no model is asked for. journal: the account, continued if it is there.

    A model that cannot be asked (no key, no such provider) gives a service that has stopped, and says why.
    """
    if settings.llm is None:
        return None
    door = Door(settings.llm, settings.api_base)
    client = Client(door, _meter(door, settings, journal), timeout_s=settings.llm_timeout_s)
    problem = door.problem()
    if problem is not None:
        client.stop(str(problem))
    return LlmService(client, settings.llm, settings.llm_parallel)


def _meter(door: Door, settings: Settings, journal: Path | None) -> Meter:
    return Meter(settings.llm_budget, settings.llm_price or door.price(), journal)
