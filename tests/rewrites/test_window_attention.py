"""Attention behind a sliding window: known by its mask's value, checked against torch's own call, kept if faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from rewritten_models import graph_of
from torch import fx

from hotswap.integrator.rewrites import window_attention
from hotswap.integrator.rewrites.known_values import known_values
from hotswap.integrator.rewrites.mask_choice import specialise
from hotswap.integrator.rewrites.rewrite import Notes, Setting
from hotswap.integrator.rewrites.window_attention import WINDOW_ATTENTION, Where, attention_by_window, with_windows

LENGTH = 12


def by_definition(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, left: int, right: int, scale: float | None
) -> torch.Tensor:
    """What the flash kernel does, written out: softmax over keys i - left to i + right, few key heads for many."""
    times = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(times, 1) for t in (key, value))
    scores = (query @ key.transpose(-1, -2)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    at = torch.arange(query.shape[2], device=query.device)
    far = at[None] - at[:, None]
    return scores.masked_fill((far < -left) | (far > right), float("-inf")).softmax(-1) @ value


def one_key_more(*args: Any) -> torch.Tensor:
    query, key, value, left, right, scale = args
    return by_definition(query, key, value, left + 1, right, scale)


def refuses(*args: Any) -> torch.Tensor:
    raise RuntimeError("this build has no such kernel")


def where(attend: Callable[..., torch.Tensor] = by_definition, window_us: float = 1.0) -> Where:
    def clock(run: Any) -> float:
        return window_us if run.func is attend else 10.0

    return Where(("cpu",), frozenset({torch.float32}), (refuses, attend), clock)


def sees(left: int, right: int) -> torch.Tensor:
    at = torch.arange(LENGTH)
    return (at[None] - at[:, None] >= -left) & (at[None] - at[:, None] <= right)


def attend(q: torch.Tensor, k: torch.Tensor, left: int, right: int) -> torch.Tensor:
    rows, few, length, width = k.shape
    at = torch.arange(length)
    mask = (at[None] >= at[:, None] - left) & (at[None] <= at[:, None] + right)
    wide = k[:, :, None].expand(rows, few, 2, length, width).reshape(rows, 2 * few, length, width)
    return F.scaled_dot_product_attention(q, wide, wide, attn_mask=mask[None, None]).transpose(1, 2)


@pytest.fixture
def inputs(monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    monkeypatch.setattr(window_attention, "_decided", {})
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, LENGTH, 8, generator=generator) for heads in (4, 2))
    return q, k


def rewritten(
    inputs: tuple[torch.Tensor, torch.Tensor], left: int, right: int, here: Where
) -> tuple[fx.GraphModule, torch.Tensor, Notes]:
    """Return the graph, what it gives, and what was done to it."""
    gm, given = graph_of(lambda q, k: attend(q, k, left, right), *inputs)
    notes = Notes()
    with_windows(gm, known_values(gm), notes, "window-attention", here)
    gm.graph.lint()
    gm.recompile()
    return gm, gm(*given)[0], notes


def calls(gm: fx.GraphModule) -> list[str]:
    return [str(getattr(n.target, "__name__", n.target)) for n in gm.graph.nodes if n.op.startswith("call")]


@pytest.mark.parametrize(("left", "right"), [(3, 0), (2, 2), (0, 4), (LENGTH, 1)])
def test_a_window_is_called_as_one_without_its_mask_and_with_the_few_key_heads(
    left: int, right: int, inputs: tuple[torch.Tensor, torch.Tensor]
) -> None:
    gm, made, notes = rewritten(inputs, left, right, where())
    assert calls(gm) == ["by_definition", "transpose"]
    assert [one.what.partition(":")[0] for one in notes.applied] == [
        f"a window of {min(left, LENGTH - 1) + right + 1} keys"
    ]
    torch.testing.assert_close(made, attend(*inputs, left, right))


def test_a_window_that_is_not_faster_is_left_with_its_figures(inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    gm, _, notes = rewritten(inputs, 3, 0, where(window_us=9.9))
    assert "by_definition" not in calls(gm)
    assert "definition 9.9 us, with the mask: torch's choice 10.0 us" in notes.left[0].reason


@pytest.mark.parametrize(("kernel", "said"), [(one_key_more, "differs"), (refuses, "has no such kernel")])
def test_a_kernel_that_is_wrong_or_refuses_is_not_used(
    kernel: Callable[..., torch.Tensor], said: str, inputs: tuple[torch.Tensor, torch.Tensor]
) -> None:
    gm, made, notes = rewritten(inputs, 3, 0, where(kernel))
    assert "scaled_dot_product_attention" in calls(gm)
    assert said in notes.left[0].reason
    torch.testing.assert_close(made, attend(*inputs, 3, 0))


def test_a_window_that_comes_from_an_argument_keeps_its_mask(inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, _ = inputs
    gm, given = graph_of(lambda q, mask: F.scaled_dot_product_attention(q, q, q, attn_mask=mask), q, sees(3, 0))
    with_windows(gm, known_values(gm), Notes(), "window-attention", where())
    assert calls(gm) == ["scaled_dot_product_attention"]
    assert given


def test_a_passed_mask_and_a_window_have_a_form_for_when_the_mask_hides_nothing(
    inputs: tuple[torch.Tensor, torch.Tensor],
) -> None:
    def run(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        at = torch.arange(LENGTH)
        window = (at[None] - at[:, None]).abs() <= 2
        return F.scaled_dot_product_attention(q, q, q, attn_mask=window & mask[:, None, None].bool())

    whole = torch.ones(2, LENGTH, dtype=torch.long)
    gm, given = graph_of(run, inputs[0], whole)
    assert specialise(gm, Notes(), None) is None
    condition = specialise(gm, Notes(), where())
    assert condition is not None
    gm.recompile()
    assert condition.holds(given)
    assert calls(gm) == ["by_definition"]
    torch.testing.assert_close(gm(*given)[0], run(inputs[0], whole))


def test_on_a_cpu_the_mask_stays(inputs: tuple[torch.Tensor, torch.Tensor]) -> None:
    gm, _ = graph_of(lambda q, k: attend(q, k, 3, 0), *inputs)
    WINDOW_ATTENTION.apply(gm, Setting(), Notes())
    assert "scaled_dot_product_attention" in calls(gm)


@pytest.mark.gpu
@pytest.mark.parametrize(("left", "right", "width", "few"), [(64, 64, 64, 4), (127, 0, 64, 1), (1023, 0, 256, 2)])
def test_the_flash_kernel_has_the_window_that_is_asked_for(left: int, right: int, width: int, few: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, 1536, width, generator=generator, device="cuda").bfloat16() for heads in (4, few, few)
    )
    q = 4 * q  # a few keys then have most of the weight: one key too few or too many shows
    exact = by_definition(q.double(), k.double(), v.double(), left, right, None)
    wrong = by_definition(q.double(), k.double(), v.double(), left - 1, right, None)
    made = attention_by_window(q, k, v, left, right, None).double()
    assert (made - exact).abs().max() < 0.05 < (wrong - exact).abs().max()
