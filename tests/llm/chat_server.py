"""A real HTTP server on loopback that speaks OpenAI's chat API and answers as a test says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "sk-test-0123456789abcdef"


@dataclass(frozen=True)
class Answer:
    """What one request gets. drop: close the connection without a word. usage: (prompt, completion) tokens billed."""

    text: str | None = ""
    status: int = 200
    delay_s: float = 0.0
    drop: bool = False
    usage: tuple[int, int] | None = (1000, 200)
    error: str = "the server says no"
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Asked:
    """One request as it came in."""

    body: dict[str, Any]
    headers: dict[str, str]
    at: float

    @property
    def prompt(self) -> str:
        return "\n".join(str(m["content"]) for m in self.body["messages"])


class ChatServer:
    """Answers the n-th request (from 0) by `answer(n, asked)`; `asked` keeps them all."""

    def __init__(self, answer: Callable[[int, Asked], Answer]) -> None:
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._answer = answer
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, asked: Asked) -> Answer:
        with self._lock:
            number = len(self.asked)
            self.asked.append(asked)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            answer = self._answer(number, asked)
            time.sleep(answer.delay_s)
            return answer
        finally:
            with self._lock:
                self._at_once -= 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = server.take(Asked(body, dict(self.headers), time.monotonic()))
                if answer.drop:
                    self.close_connection = True
                    return
                reply = json.dumps(_body(answer, body)).encode()
                try:
                    self.send_response(answer.status)
                    for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(reply)))
                    self.end_headers()
                    self.wfile.write(reply)
                except OSError:  # the client has lost patience and gone
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing: tests look at `asked`."""

        return Handler


def _body(answer: Answer, asked: dict[str, Any]) -> dict[str, Any]:
    if answer.status != 200:
        return {"error": {"message": answer.error, "type": "error", "param": None, "code": answer.code}}
    body: dict[str, Any] = {
        "id": "1", "object": "chat.completion", "created": 1, "model": asked["model"],
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer.text}}],
    }  # fmt: skip
    if answer.usage is not None:
        into, out = answer.usage
        body["usage"] = {"prompt_tokens": into, "completion_tokens": out, "total_tokens": into + out}
    return body


@contextmanager
def serving(answer: Callable[[int, Asked], Answer]) -> Iterator[ChatServer]:
    """Yield a server that answers so, and close it."""
    server = ChatServer(answer)
    try:
        yield server
    finally:
        server.close()


Serve = Callable[[Callable[[int, Asked], Answer]], ChatServer]
