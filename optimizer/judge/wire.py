"""Length-prefixed JSON over a socketpair, with file descriptors beside it: all that passes between judge and worker.

The judge never trusts what it reads here: a frame too long, not JSON, not an object or without the number of the
request it answers is a `GarbledError`, and a peer that went away is a `GoneError`.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

_HEADER = struct.Struct("<I")
FDS = 2
"""Descriptors that come with an order, at most."""
LONGEST = 1 << 20
"""Bytes of the longest frame; a verdict needs some hundred, a pool's layout some ten thousand."""


class WireError(Exception):
    """Base of the three ways in which a peer fails to answer."""


class GoneError(WireError):
    """The peer closed its end."""


class GarbledError(WireError):
    """The peer wrote something that is no frame of this protocol."""


class LateError(WireError):
    """The peer did not answer in time."""


def send(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Send one frame; raise GoneError when nobody reads it and LateError when the peer does not take it in time."""
    body = json.dumps(message).encode()
    frame = _HEADER.pack(len(body)) + body
    try:
        sent = socket.send_fds(sock, [frame], list(fds)) if fds else 0
        sock.sendall(frame[sent:])
    except TimeoutError as error:
        raise LateError from error
    except OSError as error:
        raise GoneError from error


def receive(sock: socket.socket, seconds: float | None = None, most_fds: int = 0) -> tuple[dict[str, Any], list[int]]:
    """Return the next frame and the descriptors that came with it; raise GoneError, GarbledError or LateError.

    most_fds: none is taken where none is wanted, or an untrusted peer could fill this process's table with them.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    head, fds = _exactly(sock, _HEADER.size, deadline, most_fds)
    (length,) = _HEADER.unpack(head)
    if length > LONGEST:
        raise GarbledError(f"a frame of {length} bytes, at most {LONGEST} expected")
    body, _ = _exactly(sock, length, deadline)
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise GarbledError("a frame that is not JSON") from error
    if not isinstance(message, dict):
        raise GarbledError("a frame that is not an object")
    return message, fds


def _exactly(sock: socket.socket, count: int, deadline: float | None, most_fds: int = 0) -> tuple[bytes, list[int]]:
    parts: list[bytes] = []
    fds: list[int] = []
    while count:
        try:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise LateError
                sock.settimeout(left)
            if most_fds:
                part, more, _, _ = socket.recv_fds(sock, count, most_fds)
                fds += more
            else:
                part = sock.recv(count)
        except TimeoutError as error:
            raise LateError from error
        except OSError as error:
            raise GoneError from error
        if not part:
            raise GoneError
        parts.append(part)
        count -= len(part)
    return b"".join(parts), fds
