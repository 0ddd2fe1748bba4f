"""Offer what a language model answers as candidates for one task, asking ahead while the judge is at work."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence

from ...extractor.task import Task
from ..attempt import Attempt
from ..candidate import Candidate
from .novelty import shape_of
from .prompt import Setting, messages, reached
from .service import Conversation, LlmService
from .strategy import Move, next_move

# So many answers in a row that held nothing new: the model has said what it has to say about this task.
_NOTHING_NEW = 6


class LlmProposer:
    """Proposes for one task. source: a candidate's text by its hash, as the ledger keeps it.

    reason: why it has nothing to offer, None while it may have.
    """

    def __init__(self, setting: Setting, service: LlmService, source: Callable[[str], str]) -> None:
        self.name = f"llm:{service.model}"
        self._setting, self._service, self._source = setting, service, source
        self._talks: list[tuple[Conversation, Move]] = []
        self._ready: deque[Candidate] = deque()
        self._shapes: dict[str, str] = {}
        self._mending: set[str] = set()
        self._asked = self._in_vain = 0
        self._short = False
        self._given_up: str | None = None

    @property
    def reason(self) -> str | None:
        if self._talks or self._ready:
            return None
        return self._given_up or self._service.client.stopped

    @property
    def waiting(self) -> bool:
        """Whether answers are on their way, so that nothing now does not mean nothing more."""
        return bool(self._talks)

    @property
    def answered(self) -> bool:
        """Whether there is something to look at: an answer, or one that was kept back."""
        return bool(self._ready) or any(talk.done.is_set() for talk, _ in self._talks)

    def wait(self, seconds: float) -> None:
        """Return when an answer has come, or after `seconds`."""
        self._service.wait(lambda: self.answered, seconds)

    def propose(self, task: Task, history: Sequence[Attempt]) -> Candidate | None:
        """Return the next answer that is new, None where none is there now; `waiting` says whether some will come."""
        self._gather(history)
        self.ask_ahead(history)
        return self._ready.popleft() if self._ready else None

    def _gather(self, history: Sequence[Attempt]) -> None:
        known = {self._shape(a.source_hash) for a in history} | {shape_of(c.source) for c in self._ready}
        finished = [pair for pair in self._talks if pair[0].done.is_set()]
        self._talks = [pair for pair in self._talks if pair not in finished]
        for talk, move in finished:
            if talk.source is None:
                self._failed(talk)
            elif (shape := shape_of(talk.source)) in known:
                self._service.count_repeat()
                self._vain("the same kernels again")
            else:
                known.add(shape)
                self._in_vain = 0
                self._ready.append(Candidate(talk.source, self.name, move.parent, {"strategy": move.strategy}))

    def _failed(self, talk: Conversation) -> None:
        if talk.too_long and not self._short:
            self._short = True  # what was tried and the playbook can be left out
        elif talk.too_long:
            self._give_up(f"{talk.failure}; name a model that reads more")
        elif self._service.client.stopped is None:
            self._vain(talk.failure or "no kernel")

    def _vain(self, last: str) -> None:
        self._in_vain += 1
        if self._in_vain == _NOTHING_NEW:
            self._give_up(f"{self._in_vain} answers in a row held nothing new, the last: {last}")

    def _give_up(self, reason: str) -> None:
        """Ask nothing more for this task."""
        self._given_up = reason
        self._service.give_up(self._setting.task.name, reason)

    def ask_ahead(self, history: Sequence[Attempt]) -> None:
        """Have as many requests under way as may be, so that answers come while the judge is at work."""
        while (
            self._given_up is None
            and self._service.free > 0
            and len(self._talks) + len(self._ready) < self._service.parallel
        ):
            said = functools.partial(reached, self._setting)
            move = next_move(history, self._asked, self._source, said, self._mending)
            self._asked += 1
            if move.strategy == "repair" and move.parent is not None:
                self._mending.add(move.parent)
            prompt = messages(self._setting, move, history, short=self._short)
            parent = move.shown[0][1] if move.shown else None
            talk = self._service.begin(prompt, parent, task=self._setting.task.name, strategy=move.strategy)
            self._talks.append((talk, move))

    def _shape(self, source_hash: str) -> str:
        if source_hash not in self._shapes:
            self._shapes[source_hash] = shape_of(self._source(source_hash))
        return self._shapes[source_hash]
