"""What a graph writes into is known, and no rewrite moves a read across a write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from rewritten_models import graph_of
from torch import nn

from hotswap.integrator.rewrites.drop_copies import DROP_COPIES
from hotswap.integrator.rewrites.fold_shapes import FOLD_SHAPES
from hotswap.integrator.rewrites.grouped_heads import ungroup
from hotswap.integrator.rewrites.merge_linears import MERGE_LINEARS
from hotswap.integrator.rewrites.parameter_packs import ParameterPacks
from hotswap.integrator.rewrites.rewrite import Notes, Setting
from hotswap.integrator.writes import find_writes

sdpa = F.scaled_dot_product_attention


def test_a_write_into_a_view_is_one_into_the_tensor_and_its_other_views_but_not_into_what_is_read() -> None:
    def run(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        part, row = x.view(-1), x[0]
        part.index_copy_(0, y, z)
        return row.exp()

    gm, inputs = graph_of(run, torch.zeros(2, 3), torch.tensor([1]), torch.ones(1))
    writes = find_writes(gm)
    ((node, memory),) = writes.at.items()
    assert str(node.target) == "index_copy_"
    names = {str(n.target) for n in memory if n.op != "placeholder"} - {"index_copy_"}
    assert names == {"view", "<built-in function getitem>"}
    written = [n for n in gm.graph.nodes if n.op == "placeholder" and n in memory]
    assert [inputs[0] is v for n, v in zip(gm.graph.nodes, inputs, strict=False) if n in written] == [True]
    assert writes.between(written[0], gm.graph.output_node(), written[0])
    assert not writes.between(node, gm.graph.output_node(), written[0])


def test_what_is_computed_from_a_tensor_before_and_after_a_write_is_not_folded_to_one_value() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(4)
        before = mask + 1
        mask.add_(2)
        return x + before + mask * 3

    gm, inputs = graph_of(run, torch.ones(4))
    FOLD_SHAPES.apply(gm, Setting(), Notes())
    gm.recompile()
    torch.testing.assert_close(gm(*inputs)[0], run(*inputs))


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x * 2
        first = self.one(hidden)
        hidden.add_(1)
        made: torch.Tensor = (first * self.other(hidden)).exp()
        return made


def test_linears_are_not_merged_across_a_write_into_what_they_read() -> None:
    gm, inputs = graph_of(Writing(), torch.randn(2, 4))
    notes = Notes()
    MERGE_LINEARS.apply(gm, Setting(ParameterPacks(), False, inputs), notes)
    assert [left.reason for left in notes.left] == ["what they read is written into"]


def heads(write: Callable[[torch.Tensor, torch.Tensor], Any]) -> Callable[..., torch.Tensor]:
    def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        k.mul_(2)
        wide = k[:, :, None].expand(1, 2, 2, 6, 8).reshape(1, 4, 6, 8)
        write(k, wide)
        return sdpa(q, wide, wide)

    return run


@pytest.mark.parametrize(
    ("write", "ungrouped"),
    [(lambda k, wide: None, True), (lambda k, wide: k.add_(1), False), (lambda k, wide: wide.add_(1), False)],
    ids=["nothing", "the few heads", "the repeated heads"],
)
def test_repeated_heads_are_read_once_where_nothing_writes_after_they_were_repeated(
    write: Any, ungrouped: bool
) -> None:
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8)
    run = heads(write)
    gm, _ = graph_of(run, q, k.clone())
    ungroup(gm, Notes(), on=("cpu",), dtypes=frozenset({torch.float32}))
    gm.recompile()
    assert ("reshape" not in {str(n.target) for n in gm.graph.nodes}) == ungrouped
    places = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
    mine = {"l_k_": k.clone(), "l_q_": q}
    torch.testing.assert_close(gm(*[mine[name] for name in places])[0], run(q, k.clone()))


def test_a_copy_of_what_is_written_into_later_stays() -> None:
    def run(q: torch.Tensor) -> torch.Tensor:
        base = q * 1
        keys = torch.cat([torch.tensor([]), base], -2)
        base.add_(1)
        return sdpa(q, keys, keys)

    gm, inputs = graph_of(run, torch.randn(1, 2, 6, 8))
    DROP_COPIES.apply(gm, Setting(), Notes())
    gm.recompile()
    torch.testing.assert_close(gm(*inputs)[0], run(*inputs))
