"""Layers that compute the same mask read one; nothing else of the graph changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention as sdpa

from hotswap.integrator import shared_masks
from hotswap.integrator.shared_masks import share_masks
from hotswap.integrator.tails import compiled

aten = torch.ops.aten


def graph_of(run: Callable[..., object], *inputs: Tensor) -> fx.GraphModule:
    with torch.no_grad():
        return make_fx(run)(*inputs)


def count(gm: fx.GraphModule, op: object) -> int:
    return sum(node.target is op for node in gm.graph.nodes)


def layers(q: Tensor, mask: Tensor) -> Tensor:
    for _ in range(3):
        q = sdpa(q, q, q, attn_mask=mask[:, None, None].bool())
    return q


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 2, 8, 16), torch.ones(2, 8).long().triu()


def test_a_mask_is_computed_once_for_all_layers(inputs: tuple[Tensor, Tensor]) -> None:
    gm = graph_of(layers, *inputs)
    before = count(gm, aten.where.self)
    assert before == 3
    assert share_masks(gm.graph) > 0
    gm.recompile()
    assert count(gm, aten.where.self) == 1
    assert torch.equal(gm(*inputs), layers(*inputs))
    assert share_masks(gm.graph) == 0


def test_masks_of_other_values_stay_apart(inputs: tuple[Tensor, Tensor]) -> None:
    def run(q: Tensor, mask: Tensor) -> Tensor:
        q = sdpa(q, q, q, attn_mask=(mask == 1)[:, None, None])
        return sdpa(q, q, q, attn_mask=(mask == 0)[:, None, None])

    gm = graph_of(run, *inputs)
    share_masks(gm.graph)
    gm.recompile()
    assert count(gm, aten.where.self) == 2
    assert torch.equal(gm(*inputs).isnan(), run(*inputs).isnan())
    torch.testing.assert_close(gm(*inputs), run(*inputs), rtol=0, atol=0, equal_nan=True)


def test_random_masks_are_drawn_for_each_layer(inputs: tuple[Tensor, Tensor]) -> None:
    def run(q: Tensor, mask: Tensor) -> Tensor:
        for _ in range(2):
            q = sdpa(q, q, q, attn_mask=torch.rand(8, 8) < mask[:, None, None] + 0.5)
        return q

    gm = graph_of(run, *inputs)
    share_masks(gm.graph)
    assert count(gm, aten.rand.default) == 2


def test_what_is_returned_stays_a_tensor_of_its_own(inputs: tuple[Tensor, Tensor]) -> None:
    def run(q: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, other = mask.float()[:, None, None].log(), mask.float()[:, None, None].log()
        return sdpa(sdpa(q, q, q, attn_mask=one), q, q, attn_mask=other), one, other

    gm = graph_of(run, *inputs)
    share_masks(gm.graph)
    gm.recompile()
    out, one, other = gm(*inputs)
    assert one.data_ptr() != other.data_ptr()
    assert torch.equal(out, run(*inputs)[0])


def test_inductor_is_given_one_mask(inputs: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(graph: fx.Graph) -> None:
        raise RuntimeError(f"{share_masks(graph)} nodes gone")

    monkeypatch.setattr(shared_masks, "share_masks", stop)  # what follows is Inductor's, and takes its time
    with torch.no_grad(), pytest.raises(Exception, match=r"[1-9] nodes gone"):
        compiled(fx.symbolic_trace(layers), list(inputs))
