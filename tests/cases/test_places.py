"""Where it runs: no network, caches that others share, too (A57, A58)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_ins import kernel_calls, winners_of, write_winners

import hotswap
from hotswap.extractor.capture import capture
from hotswap.extractor.extract import extract
from hotswap.models.cache import cache_dir
from hotswap.models.errors import EnvironmentMissing, HotswapError
from hotswap.models.spec import LoadOptions, load
from hotswap.profiler.record import record
from hotswap.profiler.recording import Limits

LIMITS = Limits("cpu", 10.0, {"float32": 0.05, "bfloat16": 0.05}, 1.0, 1 << 25, "")


def test_a57_from_a_zoo_name_to_a_patched_model_no_connection_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a connection was tried")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    workload = load("gpt2@tiny", LoadOptions(batch=1, seq_len=(8,)))
    profile = record(workload, limits=LIMITS, steps=1)
    found = capture(workload)
    extraction = extract("gpt2", found, profile, tmp_path / "tasks", top=2)
    assert extraction.tasks
    torch._dynamo.reset()
    call = workload.calls[0]
    winners = winners_of(workload.model.forward, *call.args, **dict(call.kwargs))
    made = hotswap.patch(workload.model, write_winners(tmp_path / "run", winners))
    with torch.no_grad():
        workload.model(*call.args, **dict(call.kwargs))
    assert kernel_calls(made)


RACER = """
import sys
from pathlib import Path
from hotswap.integrator.winners import store_winner, stored_winners
from hotswap.optimizer.native import compile_cpp
from hotswap.optimizer.winner import Winner

winner = Winner.load(Path(sys.argv[1]))
for _ in range(40):
    store_winner(winner)
    assert [w.fingerprint for w in stored_winners()] == [winner.fingerprint]
library = compile_cpp('extern "C" int answer(int x) { return x + 41; }')
assert library.answer(1) == 42
print("fine")
"""


def test_a58_two_processes_share_a_cache_without_harm(tmp_path: Path) -> None:
    winner = winners_of(torch.nn.GELU().forward, torch.randn(3, 4))[0]
    winner.save(tmp_path / "winner.json")
    environment = {**os.environ, "HOTSWAP_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    racing = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", RACER, str(tmp_path / "winner.json")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in racing:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, "fine\n"), err
    cache = tmp_path / "cache"
    assert cache.stat().st_mode & 0o077 == 0
    assert len(list((cache / "store").rglob("*.json"))) == 1
    assert not list(cache.rglob(".*-*"))  # nothing half written is left


def test_a58_a_cache_that_cannot_be_used_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv("HOTSWAP_CACHE", str(open_to_all))
    with pytest.raises(HotswapError) as raised:
        cache_dir()
    assert "HOTSWAP_CACHE" in str(raised.value)
    assert "\n" not in str(raised.value)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOTSWAP_CACHE", str(tmp_path / "file"))
    with pytest.raises(EnvironmentMissing):
        cache_dir()
