"""A task, its ledger, and a model behind a real server on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chat_server import SECRET, Answer, Asked, ChatServer, Serve, serving
from gelu_task import gelu_task

from hotswap.extractor.task import Task
from hotswap.optimizer.ledger import Ledger


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the provider's key be in the environment, as a user's is."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    return str(SECRET)


@pytest.fixture
def gelu() -> Task:
    """A task with much to gain: its floor is far below what the scripted kernels reach."""
    made: Task = gelu_task(floor_us=3.0, bytes=600_000)
    return made


@pytest.fixture
def folder(tmp_path: Path, gelu: Task) -> Path:
    gelu.save(tmp_path / "00-gelu" / "task.json")
    return tmp_path / "00-gelu"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as opened:
        yield opened


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts a server which answers as told; all are closed at the end."""
    opened = []

    def start(answer: Callable[[int, Asked], Answer]) -> ChatServer:
        context = serving(answer)
        server = context.__enter__()
        opened.append(context)
        return server

    yield start
    for context in opened:
        context.__exit__(None, None, None)
