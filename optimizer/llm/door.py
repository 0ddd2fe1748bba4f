"""The one door to LiteLLM: a list of messages in, a reply or a named failure out. Nothing else imports it.

LiteLLM takes seconds to import and is an extra: it is imported when the first door is made. Its own retries and budget
are off: we count what is sent (`meter.py`), and its `max_budget` was seen not to hold.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ...models.errors import EnvironmentMissing
from ...models.hide_keys import scrub
from ...models.llm_budget import LlmPrice

Message = Mapping[str, str]
Trouble = Literal["no key", "model", "quota", "refused", "too long", "busy", "time-out", "server", "unreachable"]
# Trying again may help; after any other trouble it cannot.
PASSING: frozenset[Trouble] = frozenset({"busy", "time-out", "server", "unreachable"})
# The provider may have worked, and may bill, though no answer came.
MAYBE_BILLED: frozenset[Trouble] = frozenset({"time-out", "unreachable"})


@dataclass(frozen=True)
class Reply:
    """What the model said. Token counts are the server's, None where it gave none. cut: it ran out of tokens."""

    text: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cut: bool


class DoorError(Exception):
    """A request that brought no reply; its text is one line with what to do. after_s: when the server wants another."""

    def __init__(self, trouble: Trouble, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.after_s = after_s


class Asking(Protocol):
    """Anything that answers messages; `Door` is one."""

    def complete(self, messages: Sequence[Message], *, max_tokens: int, timeout_s: float) -> Reply: ...


class Door:
    """One model behind LiteLLM. Raises EnvironmentMissing where LiteLLM is not installed.

    api_base: an OpenAI-compatible server; without a key in the environment it is asked with none.
    """

    def __init__(self, model: str, api_base: str | None = None) -> None:
        self.model, self.api_base = model, api_base
        self._litellm = _litellm()

    def price(self) -> LlmPrice | None:
        """Return the price LiteLLM knows for the model, None where it knows none."""
        try:
            about = self._litellm.get_model_info(self.model)
        except (self._litellm.exceptions.ModelNotMappedError, ValueError):
            return None
        into, out = about.get("input_cost_per_token"), about.get("output_cost_per_token")
        return LlmPrice(into * 1e6, out * 1e6) if into is not None and out is not None else None

    def problem(self) -> DoorError | None:
        """Return what can be said to be wrong before anything is sent, None where nothing is."""
        try:
            self._litellm.get_llm_provider(self.model, api_base=self.api_base)
        except self._litellm.exceptions.BadRequestError:
            return DoorError("model", f"--llm {self.model}: LiteLLM knows no provider of that name; {_NAMES}")
        missing = self._missing_keys()
        if missing and self.api_base is None:
            where = " or ".join(missing)
            return DoorError("no key", f"--llm {self.model}: no key; set {where}, or name a server by --api-base")
        return None

    def complete(self, messages: Sequence[Message], *, max_tokens: int, timeout_s: float) -> Reply:
        """Send once and return the reply; raise DoorError for whatever goes wrong."""
        options: dict[str, Any] = {}
        if self.api_base is not None:
            options["api_base"] = self.api_base
            if self._missing_keys():
                options["api_key"] = "none"  # servers without keys are asked all the same; the client wants one
        errors = self._litellm.exceptions
        try:
            _hush()
            answer = self._litellm.completion(
                model=self.model,
                messages=[dict(m) for m in messages],
                max_tokens=max_tokens,
                timeout=timeout_s,
                num_retries=0,
                max_retries=0,
                **options,
            )
            return _reply(answer)
        except errors.ContextWindowExceededError as error:
            raise DoorError("too long", f"{self.model}: {_line(error)}; the prompt does not fit") from None
        except (errors.AuthenticationError, errors.PermissionDeniedError) as error:
            raise DoorError("no key", f"{self.model}: key refused ({_line(error)}); set the provider's key") from None
        except errors.NotFoundError as error:
            raise DoorError("model", f"{self.model}: no such model there ({_line(error)}); {_NAMES}") from None
        except errors.RateLimitError as error:
            raise self._limited(error) from None
        except errors.Timeout as error:
            raise DoorError(
                "time-out", f"{self.model}: no answer in {timeout_s:g} s; --llm-timeout is longer"
            ) from error
        except (errors.InternalServerError, errors.ServiceUnavailableError, errors.APIConnectionError) as error:
            raise self._server(error) from None
        except (errors.APIError, errors.BadRequestError, errors.OpenAIError) as error:
            if _too_long(error):
                raise DoorError("too long", f"{self.model}: {_line(error)}; the prompt does not fit") from None
            if getattr(error, "status_code", None) == 402:
                raise DoorError("quota", f"{self.model}: {_line(error)}; top the account up") from None
            raise DoorError("refused", f"{self.model}: the request was refused ({_line(error)})") from None

    def _limited(self, error: Any) -> DoorError:
        text = _line(error)
        if "quota" in text.lower() or "billing" in text.lower():
            return DoorError("quota", f"{self.model}: {text}; raise the quota or top the account up")
        return DoorError("busy", f"{self.model}: rate limit ({text})", _retry_after(error))

    def _server(self, error: Any) -> DoorError:
        text = _line(error)
        if "Missing credentials" in text:
            return DoorError("no key", f"--llm {self.model}: no key; set the provider's, or --api-base")
        if "Connection error" in text or isinstance(error, self._litellm.exceptions.APIConnectionError):
            where = self.api_base or "the provider"
            return DoorError("unreachable", f"{self.model}: {where} cannot be reached or hung up; is it running?")
        return DoorError("server", f"{self.model}: the server failed ({text})", _retry_after(error))

    def _missing_keys(self) -> list[str]:
        found = self._litellm.validate_environment(self.model)
        return [] if found["keys_in_environment"] else list(found["missing_keys"])


_NAMES = "expected a name such as openai/gpt-5, anthropic/claude-sonnet-4-5 or ollama/qwen3"


def _litellm() -> Any:
    # Else the import asks the network for a newer table of prices.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import litellm
    except ModuleNotFoundError as error:
        if error.name != "litellm":
            raise
        raise EnvironmentMissing("--llm needs LiteLLM, which is not installed; pip install 'hotswap[llm]'") from error
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.drop_params = True
    return litellm


def _hush() -> None:
    # pydantic warns of LiteLLM's own types when they are first used, which is no news to our user.
    warnings.filterwarnings("ignore", message=".*`ReadOnly` qualifier", category=UserWarning)
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)


def _reply(answer: Any) -> Reply:
    choice = answer.choices[0] if answer.choices else None
    usage = getattr(answer, "usage", None)
    into, out = (getattr(usage, n, None) for n in ("prompt_tokens", "completion_tokens"))
    counted = bool(into)  # a server that does not count leaves LiteLLM with zeros, and no prompt has no tokens
    return Reply(
        # Scrubbed: the server was sent the key, and what it answers is kept.
        text=scrub(choice.message.content or "") if choice is not None else "",
        prompt_tokens=int(into) if counted and into is not None else None,
        completion_tokens=int(out or 0) if counted else None,
        cut=choice is not None and choice.finish_reason == "length",
    )


def _too_long(error: Any) -> bool:
    # LiteLLM knows some providers' words for it; the code, and these words, are what the others have in common.
    words = f"{getattr(error, 'code', '')} {error}".lower()
    return any(w in words for w in ("context_length", "context length", "context window", "prompt is too long"))


def _retry_after(error: Any) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def _line(error: BaseException) -> str:
    """Return the provider's own words on one line, without LiteLLM's prefixes and without secrets."""
    text = " ".join(str(error).split())
    for mark in ("Exception - ", "Error: "):
        text = text.rpartition(mark)[2]
    return scrub(text)[:200]
