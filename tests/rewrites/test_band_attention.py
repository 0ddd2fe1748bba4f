"""Attention in a band gives what torch's gives with the band as a mask; in Triton's interpreter, and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hotswap.integrator.rewrites import band_attention as module
from hotswap.integrator.rewrites.band_attention import attention_by_band, band_attention
from hotswap.optimizer.codegen.triton_interpreter import Interpreter

SOURCE = Path(module.__file__).with_name("band_attention_kernel.py").read_text(encoding="utf-8")


def exact(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, left: int, right: int, sinks: torch.Tensor | None
) -> torch.Tensor:
    query, key, value = (t.double() for t in (query, key, value))
    key, value = (t.repeat_interleave(query.shape[1] // key.shape[1], 1) for t in (key, value))
    at = torch.arange(query.shape[2], device=query.device)
    far = at[None] - at[:, None]
    weights = ((query @ key.transpose(-1, -2)) * 0.2).exp() * ((far >= -left) & (far <= right))
    beside = 0.0 if sinks is None else sinks.double().exp()
    return (weights @ value) / (weights.sum(-1, keepdim=True) + beside)


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    child = Interpreter()
    yield child
    child.close()


@pytest.mark.parametrize(
    ("left", "right", "length", "few"),
    [(16, 16, 200, 4), (63, 0, 130, 2), (0, 0, 64, 4), (5, 90, 129, 1), (400, 0, 500, 2), (1000, 1000, 70, 4)],
)
def test_a_band_gives_the_masked_attention(
    left: int, right: int, length: int, few: int, interpreter: Interpreter
) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, length, 4, 32, generator=generator).transpose(1, 2).half()
    key, value = (torch.randn(2, few, length + 8, 32, generator=generator).half()[:, :, :length] for _ in range(2))
    call = f"\n\ndef kernel(q, k, v):\n    return band_attention(q, k, v, {left}, {right}, 0.2)\n"
    (got,) = interpreter.run(SOURCE + call, [query, key, value])
    torch.testing.assert_close(got.double(), exact(query, key, value, left, right, None), rtol=2e-3, atol=2e-3)


def test_a_sink_takes_its_share(interpreter: Interpreter) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 100, 32, generator=generator).half() for _ in range(3))
    sinks = torch.linspace(-3, 5, 4).half().reshape(1, -1, 1, 1).expand(2, -1, 100, -1)
    call = "\n\ndef kernel(q, k, v, s):\n    return band_attention(q, k, v, 31, 0, 0.2, s)\n"
    (got,) = interpreter.run(SOURCE + call, [query, key, value, sinks])
    torch.testing.assert_close(got.double(), exact(query, key, value, 31, 0, sinks), rtol=2e-3, atol=2e-3)


def test_what_it_does_not_take_it_says_as_torch_does() -> None:
    q = torch.randn(1, 2, 4, 32).half()
    with pytest.raises(RuntimeError, match="of 16 bits on a GPU"):
        attention_by_band(q, q, q, 1, 1, None)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("left", "right", "width", "few"), [(64, 64, 64, 4), (127, 0, 64, 1), (1023, 0, 256, 2), (300, 300, 128, 4)]
)
def test_on_a_gpu_a_band_gives_the_masked_attention(left: int, right: int, width: int, few: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    query, key, value = (
        torch.randn(2, h, 1500, width, generator=generator, device="cuda").bfloat16() for h in (4, few, few)
    )
    query = 2 * query
    sinks = torch.linspace(-3, 5, 4, device="cuda").bfloat16().reshape(1, -1, 1, 1).expand(2, -1, 1500, -1)
    for beside in (None, sinks):
        made = band_attention(query, key, value, beside, left, right, 0.2).double()
        assert (made - exact(query, key, value, left, right, beside)).abs().max() < 0.05
    wrong = exact(query, key, value, left - 1, right, sinks)
    assert (made - wrong).abs().max() > 0.05
