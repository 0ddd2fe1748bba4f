"""What an untrusted peer may put on the wire."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from hotswap.optimizer.judge import wire


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_descriptors_nobody_asked_for_are_not_taken() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        before = descriptors()
        body = b'{"ok": true}'
        socket.send_fds(theirs, [struct.pack("<I", len(body)) + body], [0] * 8)
        message, fds = wire.receive(ours, 5.0)
        assert (message, fds) == ({"ok": True}, [])
        assert descriptors() == before


def test_descriptors_that_were_asked_for_come_with_the_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(theirs, {"do": "arena"}, (0, 1))
        message, fds = wire.receive(ours, 5.0, most_fds=wire.FDS)
        assert message == {"do": "arena"}
        assert len(fds) == wire.FDS
        for fd in fds:
            os.close(fd)


@pytest.mark.parametrize("body", [b"PASS", b"[]", b"[" * 200_000, b"1" * 9999], ids=["text", "list", "deep", "long"])
def test_what_is_no_object_is_garbled(body: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("<I", len(body)) + body[: 1 << 16])
        theirs.close()
        with pytest.raises((wire.GarbledError, wire.GoneError)):
            wire.receive(ours, 5.0)


def test_a_frame_longer_than_any_answer_is_garbled() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("<I", wire.LONGEST + 1))
        with pytest.raises(wire.GarbledError, match="at most"):
            wire.receive(ours, 5.0)
