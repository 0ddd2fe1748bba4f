"""Is it still the model? Every leaf, NaN included, against eager and one precision up (A22, A38, A60, A61)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Norm, batch, net, tiny_llama
from stand_ins import kernel_calls, winners_of, with_source
from torch import nn
from torch.nn import functional

import hotswap
from hotswap.cli.verify import require
from hotswap.integrator.verify import verify
from hotswap.models.errors import VerificationFailed
from hotswap.models.workload import Call
from hotswap.optimizer.winner import Winner

SaveRun = Callable[[list[Winner]], Path]


@contextmanager
def spoiled(model: Any, spoil: Callable[[Any], None]) -> Iterator[None]:
    """A context in which the model's output is tampered with before it is returned."""
    handle = model.register_forward_hook(lambda _m, _i, output: spoil(output))
    try:
        yield
    finally:
        handle.remove()


def _logits(output: Any) -> None:
    output.logits[0, 0, 0] += 0.1


def _cache(output: Any) -> None:
    output.past_key_values.layers[1].values[0, 0, -1] += 0.1


def _second_hidden(output: Any) -> None:
    output.hidden_states[1].mul_(1.01)


def _loss(output: Any) -> None:
    output.loss = output.logits.sum()


@pytest.mark.parametrize("spoil", [_logits, _cache, _second_hidden, _loss, None])
def test_a22_every_leaf_of_the_output_counts_the_cache_and_none_included(spoil: Any) -> None:
    llama = tiny_llama(layers=2)
    ids = torch.randint(1, 128, (2, 6), generator=torch.Generator().manual_seed(0))
    call = Call(kwargs={"input_ids": ids, "use_cache": True, "output_hidden_states": True})
    (check,) = verify(llama, lambda: spoiled(llama, spoil or (lambda _: None)), [call], derive=False, steps=0)
    assert check.passed == (spoil is None), check.detail
    if spoil is _cache:
        assert "cache.layers[1].values" in check.detail


def rounded_once(winner: Winner) -> Winner:
    """Return a norm's winner as a fused kernel computes it: fp32 throughout, rounded once where eager rounds twice."""
    head, _, returned = (winner.source or "").replace(".to(torch.bfloat16)", "").rstrip().rpartition("\n")
    *others, last = re.findall(r"\w+", returned.partition("return")[2])
    return with_source(winner, f"{head}\n    return ({''.join(f'{o}, ' for o in others)}{last}.to(torch.bfloat16),)\n")


@pytest.mark.parametrize("layers", [2, 24])
def test_a60_a_reader_can_tell_harmless_bf16_differences_from_harmful_ones(layers: int, save_run: SaveRun) -> None:
    model, x = net(layers=layers).bfloat16(), batch().bfloat16()
    call = Call((x,))
    # Equal layers are equal regions, however many there are.
    norms = [rounded_once(w) for w in winners_of(net(layers=2).bfloat16().forward, x) if "rsqrt" in (w.source or "")]
    assert len(norms) == 3  # the first, those within, the last
    run = save_run(norms)
    harmless = verify(model, lambda: hotswap.patched(model, run), [call], derive=False)[0]
    assert harmless.passed, harmless.detail
    (leaf,) = harmless.leaves
    assert 0 < leaf.max_abs < 1
    assert 0 < leaf.error <= 2 * leaf.eager_error + 1e-3  # to a run in fp32, as eager's own
    assert leaf.cosine > 0.99
    assert harmless.kl is not None
    assert harmless.kl < 0.01
    assert harmless.top1 is not None
    assert "eager" in harmless.detail
    wrong = save_run([with_source(w, (w.source or "").replace("1e-06", "0.3")) for w in norms])
    harmful = verify(model, lambda: hotswap.patched(model, wrong), [call], derive=False)[0]
    assert not harmful.passed
    assert "output: error" in harmful.detail


class Masked(nn.Module):
    """Attention by hand over a boolean mask: a query that may see nothing is all NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(1, 2)).masked_fill(~mask[:, None, :], float("-inf"))
        scores = scores.masked_fill(~mask[:, :, None], float("-inf"))
        return torch.softmax(scores, -1) @ v


def test_a61_nan_of_fully_masked_rows_must_stand_where_it_stood_and_nowhere_else(save_run: SaveRun) -> None:
    torch.manual_seed(0)
    model, x = Masked().bfloat16().eval(), torch.randn(2, 6, 16).bfloat16()
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, :3] = False  # left padding
    call = Call((x, mask))
    assert model(x, mask)[1, :3].isnan().all()
    winners = winners_of(model.forward, x, mask)
    softmax = next(w for w in winners if "softmax" in w.task)
    kept = save_run(winners)
    with hotswap.patched(model, kept) as made, torch.no_grad():
        assert torch.equal(model(x, mask).isnan(), Masked.forward(model, x, mask).isnan())
        assert kernel_calls(made)
    outcomes = {}
    wipes = "\n\n_inner = kernel\n\n\ndef kernel(*inputs):\n    return tuple(t.nan_to_num() for t in _inner(*inputs))\n"
    spreads = wipes.replace("t.nan_to_num()", 't.masked_fill(t > 0.9, float("nan"))')
    for name, more in (("honest", ""), ("wipes", wipes), ("spreads", spreads)):
        run = save_run([with_source(softmax, (softmax.source or "") + more)])
        check = verify(model, partial(hotswap.patched, model, run), [call], derive=False)[0]
        outcomes[name] = check.passed
    assert outcomes == {"honest": True, "wipes": False, "spreads": False}
    assert functional.softmax(torch.full((2,), float("-inf")), 0).isnan().all()


def test_a38_equal_bits_can_be_asked_for(save_run: SaveRun) -> None:
    model, x = Norm().bfloat16(), batch(64).bfloat16()
    (winner,) = winners_of(model.forward, x)
    finer = (
        "def kernel(x, w):\n    f = x.double()\n    f = f * (f.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()\n"
        "    return (w.double() * f).to(x.dtype)\n"
    )
    for winners, equal in (([winner], True), ([with_source(winner, finer)], False)):
        checks = verify(model, partial(hotswap.patched, model, save_run(winners)), [Call((x,))], derive=False)
        assert [(c.passed, c.bitwise) for c in checks] == [(True, equal)]
        require(checks, "run", equal_bits=False)
        with contextlib.nullcontext() if equal else pytest.raises(VerificationFailed, match="not its bits"):
            require(checks, "run", equal_bits=True)
