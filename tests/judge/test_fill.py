"""The sets of a device are filled in one launch, with exactly the bits that filling them one by one would give."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FILLS = """
import sys

import torch
from hotswap.optimizer.judge import arena

device, *names = sys.argv[1:]
draws = torch.Generator().manual_seed(4)
for name in names:
    for count, sets in ((37, 4), (4096, 3), (4999, 5)):
        if name == "bytes":
            made = [torch.randint(0, 255, (count,), generator=draws, dtype=torch.uint8) for _ in range(3)]
        else:
            made = [torch.randn(count, generator=draws).to(arena.DTYPES[name]) for _ in range(3)]
        sources = [m.to(device).view(torch.uint8) for m in made]
        nbytes = sources[0].numel()
        stride = -(-nbytes // 4096) * 4096
        room = torch.zeros(stride * sets, dtype=torch.uint8, device=device)
        rows = room.as_strided((sets, nbytes), (stride, 1), 0)
        scaled = None if name == "bytes" else name
        contents = [(n % 3 - 1, 0.7 + 0.1234567891 * n) for n in range(sets)]
        arena.refill_many(rows, sources, scaled, contents)
        for row, (which, by) in zip(rows, contents, strict=True):
            wanted = torch.empty(nbytes, dtype=torch.uint8, device=device)
            arena.refill(wanted, sources[which], scaled, by)
            assert torch.equal(row, wanted), (name, count, int((row != wanted).sum()))
        outside = room.as_strided((sets, stride - nbytes), (stride, 1), nbytes)
        assert not outside.any(), "written beyond a set"
        print(name, count)
"""


def filled(device: str, *names: str, **environment: str) -> list[str]:
    run = [sys.executable, "-c", FILLS, device, *names]
    done = subprocess.run(run, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_one_launch_fills_as_many_do() -> None:
    pytest.importorskip("triton")
    assert len(filled("cpu", "float32", "float16", "float64", "bytes", TRITON_INTERPRET="1")) == 12


@pytest.mark.gpu
def test_one_launch_fills_as_many_do_on_a_device() -> None:
    assert len(filled("cuda", "bfloat16", "float32", "float16", "float64", "bytes", TRITON_INTERPRET="0")) == 15
