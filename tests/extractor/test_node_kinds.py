"""What a captured node is: attention without dropout is work like any other, a reshape that copies is a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx

from hotswap.extractor.node_ops import NodeKind, draws, node_kinds, ops_of

aten = torch.ops.aten


def kinds_of(run: Callable[..., Any], *args: torch.Tensor) -> dict[str, NodeKind]:
    """Return the kinds of the nodes of `run` as Dynamo captures it, by the name of their target."""
    kinds: dict[str, NodeKind] = {}

    def backend(gm: fx.GraphModule, _: Any) -> Any:
        for node, kind in node_kinds(gm).items():
            kinds[str(getattr(node.target, "__name__", node.target))] = kind
        return gm.forward

    with torch.no_grad():
        torch.compile(run, backend=backend, dynamic=False)(*args)
    return kinds


def attention_on_a_gpu(op: Any, *rest: Any) -> fx.Node:
    """Return a node of a function that comes to one of the ops of a GPU's attention, with values on no device."""
    graph = fx.Graph()
    value = torch.empty(2, 4, 16, 8, device="meta", dtype=torch.bfloat16)
    inputs = [graph.placeholder(name) for name in "qkv"]
    for node in inputs:
        node.meta["example_value"] = value

    def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return op(q, k, v, *rest)[0]

    globals()["fused"] = fused  # only what a reference can import may stand in a region
    node = graph.call_function(fused, tuple(inputs))
    node.meta["example_value"] = value
    graph.output(node)
    return node


FLASH = aten._scaled_dot_product_flash_attention.default
CUDNN = aten._scaled_dot_product_cudnn_attention.default


@pytest.mark.parametrize(("op", "rest"), [(FLASH, ()), (FLASH, (0.0, True)), (CUDNN, (None, False))])
def test_a_fused_attention_without_dropout_is_an_anchor(op: Any, rest: tuple[Any, ...]) -> None:
    node = attention_on_a_gpu(op, *rest)
    assert node_kinds(fx.GraphModule({}, node.graph))[node] is NodeKind.ANCHOR


def test_a_fused_attention_with_dropout_stays_where_it_is() -> None:
    node = attention_on_a_gpu(FLASH, 0.1, False)
    assert node_kinds(fx.GraphModule({}, node.graph))[node] is NodeKind.BARRIER


def test_dropout_given_by_name_is_seen() -> None:
    assert draws(FLASH, (), {"dropout_p": 0.1})
    assert not draws(FLASH, (), {"dropout_p": 0.0})


def test_a_random_op_without_such_an_argument_draws() -> None:
    assert draws(aten.bernoulli.default, (torch.ones(2),), {})


def test_a_deterministic_op_does_not_draw() -> None:
    assert not draws(aten.add.Tensor, (torch.ones(2), 1), {})


def test_a_reshape_that_copies_is_a_memory_op() -> None:
    kinds = kinds_of(lambda x: x.transpose(1, 2).reshape(2, -1), torch.randn(2, 3, 4))
    assert kinds["reshape"] is NodeKind.MEMORY


def test_a_reshape_that_copies_nothing_is_a_view() -> None:
    assert kinds_of(lambda x: x.reshape(2, -1), torch.randn(2, 3, 4))["reshape"] is NodeKind.VIEW


def test_the_ops_of_a_node_say_whether_they_draw() -> None:
    (seen,) = [one for one in ops_of(attention_on_a_gpu(FLASH, 0.1)) or () if one.op is FLASH]
    assert seen.random
    assert seen.stays


def test_real_dropout_is_a_barrier() -> None:
    assert kinds_of(lambda x: F.dropout(x, 0.5, True), torch.randn(4, 4))["dropout"] is NodeKind.BARRIER


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_an_op_that_writes_into_what_it_has_made_itself_is_work_like_any_other() -> None:
    x, weight = torch.randn(4, 32, dtype=torch.bfloat16), torch.randn(32)
    kinds = kinds_of(lambda x, weight: F.rms_norm(x, (32,), weight, 1e-6), x, weight)
    assert kinds == {"rms_norm": NodeKind.MEMORY}


def test_an_op_that_writes_into_what_it_is_given_stays_where_it_is() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y.view(-1).add_(1)
        return y

    assert kinds_of(run, torch.randn(4)) == {"exp": NodeKind.MEMORY, "view": NodeKind.VIEW, "add_": NodeKind.BARRIER}
