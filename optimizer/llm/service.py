"""Keep several conversations with one model going while the judge works, and count how they end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...models.record import Record
from .client import Client, Stopped, TooLongError
from .door import Message, Reply
from .meter import Spent
from .replies import MalformedError, candidate_source

logger = logging.getLogger(__name__)

_REPLY_SHOWN_BACK = 24_000
_JOIN_S = 1.0
OVER = "the search is over"

_AGAIN = """\
That reply cannot be used: {reason}.
Answer once more, with exactly one fenced block: ```python with the whole file, or ```diff against the parent shown."""


@dataclass(frozen=True)
class LlmAccount(Record):
    """How far a model got in a run: what was asked and spent, how the answers ended, and why it asks nothing more.

    stopped: None where it may go on. usable: answers that were a candidate. malformed: dropped, after one request to
    mend them. repeated: known already. given_up: tasks for which no more is asked, each with the reason.
    trouble: what the last request failed of, None where it was answered.
    """

    model: str
    budget: str
    spent: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    usable: int
    malformed: int
    repeated: int
    stopped: str | None
    given_up: dict[str, str] = field(default_factory=dict)
    trouble: str | None = None


class Conversation:
    """One prompt and its answer, which is under way in a thread. source: the candidate file, once there is one.

    failure: why there is none. too_long: the prompt does not fit the model.
    """

    def __init__(self) -> None:
        self.source: str | None = None
        self.failure: str | None = None
        self.too_long = False
        self.done = threading.Event()


class LlmService:
    """One client and at most `parallel` conversations at once; a context manager that ends them."""

    def __init__(self, client: Client, model: str, parallel: int) -> None:
        self.client, self.model, self.parallel = client, model, parallel
        self._lock = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._under_way = 0
        self.usable = self.malformed = self.repeated = 0
        self._given_up: dict[str, str] = {}

    @property
    def free(self) -> int:
        """How many more conversations may begin now; 0 once the client has stopped."""
        with self._lock:
            return 0 if self.client.stopped else self.parallel - self._under_way

    def begin(self, messages: Sequence[Message], parent: str | None, **note: str) -> Conversation:
        """Start a conversation. parent: the source a diff would be against. note: for the journal."""
        talk = Conversation()
        thread = threading.Thread(target=self._run, args=(talk, list(messages), parent, note), daemon=True)
        with self._lock:
            self._under_way += 1
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()
        return talk

    def wait(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return when `ready` says so, or after `seconds`; looked at whenever a conversation ends."""
        with self._lock:
            self._lock.wait_for(ready, timeout=seconds)

    def count_repeat(self) -> None:
        with self._lock:
            self.repeated += 1

    def give_up(self, task: str, reason: str) -> None:
        """Note that no more is asked for a task; the first time it is said, as the model may be of no use at all."""
        with self._lock:
            level = logging.INFO if self._given_up else logging.WARNING
            self._given_up[task] = reason
        logger.log(level, "%s: %s: %s; the search goes on without the language model", self.model, task, reason)

    def spent(self) -> Spent:
        return self.client.meter.spent()

    def account(self) -> LlmAccount:
        """Return how far the model got until now."""
        now = self.spent()
        with self._lock:
            return LlmAccount(
                model=self.model,
                budget=str(self.client.meter.budget),
                spent=str(now),
                requests=now.requests,
                prompt_tokens=now.prompt_tokens,
                completion_tokens=now.completion_tokens,
                usd=now.usd,
                usable=self.usable,
                malformed=self.malformed,
                repeated=self.repeated,
                stopped=self.client.stopped,
                given_up=dict(self._given_up),
                trouble=self.client.trouble,
            )

    def close(self) -> None:
        """Ask nothing more and let go of what is under way; what it costs stays reserved."""
        self.client.stop(OVER, trouble=False)
        for thread in self._threads:
            thread.join(_JOIN_S / max(len(self._threads), 1))

    def _run(self, talk: Conversation, messages: list[Message], parent: str | None, note: dict[str, str]) -> None:
        try:
            talk.source = self._converse(messages, parent, note)
        except (Stopped, MalformedError) as error:
            talk.failure = str(error)
        except TooLongError as error:
            talk.failure, talk.too_long = str(error), True
        finally:
            with self._lock:
                self._under_way -= 1
                self.usable += talk.source is not None
                talk.done.set()
                self._lock.notify_all()

    def _converse(self, messages: list[Message], parent: str | None, note: dict[str, str]) -> str:
        """Return the candidate the model answers with; tell it once what was wrong with a malformed reply."""
        reply = self.client.ask(messages, **note)
        try:
            return _read(reply, parent)
        except MalformedError as problem:
            again = {"role": "user", "content": _AGAIN.format(reason=problem)}
            said = {"role": "assistant", "content": reply.text[:_REPLY_SHOWN_BACK] or "(nothing)"}
            reply = self.client.ask([*messages, said, again], **{**note, "strategy": "mend the reply"})
        try:
            return _read(reply, parent)
        except MalformedError:
            with self._lock:
                self.malformed += 1
            raise


def _read(reply: Reply, parent: str | None) -> str:
    if not reply.text.strip():
        raise MalformedError("the reply is empty" + (": all its tokens went into thinking" if reply.cut else ""))
    return candidate_source(reply.text, parent, cut=reply.cut)
