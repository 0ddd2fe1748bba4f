"""Attention with split keys gives what torch's gives, whatever the mask hides; in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from hotswap.integrator.rewrites import split_attention
from hotswap.integrator.rewrites.split_attention import attention_by_splits
from hotswap.optimizer.codegen.triton_interpreter import Interpreter

SOURCE = Path(split_attention.__file__).with_name("split_attention_kernel.py").read_text(encoding="utf-8")


def seen(rows: int, length: int) -> torch.Tensor:
    """Return a mask of a first row that sees a beginning, and further rows that see every third key."""
    lengths = (torch.arange(length) < 2 * length // 3)[None]
    thirds = (torch.arange(length) % 3 != 1).expand(rows - 1, length)
    return torch.cat([lengths, thirds])[:, None, None]


@pytest.mark.parametrize(
    ("rows", "queries", "length", "programs"),
    [(2, 4, 200, 64), (2, 1, 200, 8), (1, 16, 64, 64), (3, 3, 65, 1)],
    ids=["many splits", "two blocks a split", "one block", "one split"],
)
def test_split_keys_give_torchs_attention(rows: int, queries: int, length: int, programs: int) -> None:
    torch.manual_seed(0)
    query = torch.randn(rows, queries, 2, 32).transpose(1, 2).half()
    key, value = (torch.randn(rows, 2, length + 8, 32).half()[:, :, :length] for _ in range(2))
    mask = seen(rows, length)
    call = f"\n\ndef kernel(q, k, v, m):\n    return split_attention(q, k, v, m, 0.2, {programs})\n"
    child = Interpreter()
    try:
        (got,) = child.run(SOURCE + call, [query, key, value, mask])
    finally:
        child.close()
    want = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), attn_mask=mask, scale=0.2)
    torch.testing.assert_close(got.float(), want, rtol=2e-3, atol=2e-3)


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    query, key = torch.randn(1, 2, 4, 32).half(), torch.randn(1, 2, 70, 32).half()
    call = "\n\ndef kernel(q, k, m):\n    return split_attention(q, k, k, m, 0.2, 8)\n"
    child = Interpreter()
    try:
        (got,) = child.run(SOURCE + call, [query, key, torch.zeros(1, 1, 1, 70, dtype=torch.bool)])
    finally:
        child.close()
    assert not got.any()


def test_what_it_does_not_take_it_says_as_torch_does() -> None:
    q = torch.randn(1, 2, 4, 32).half()
    with pytest.raises(RuntimeError, match="takes up to 16 queries on a GPU"):
        attention_by_splits(q, q, q, attn_mask=torch.ones(1, 1, 1, 4, dtype=torch.bool))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16])
def test_on_a_gpu_split_keys_give_torchs_attention(rows: int) -> None:
    query = torch.randn(rows, 8, 4, 64, device="cuda", dtype=torch.bfloat16)
    key, value = (torch.randn(rows, 8, 2176, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    mask = seen(rows + 1, 2176)[:rows].cuda()
    want = F.scaled_dot_product_attention(query.float(), key.float(), value.float(), attn_mask=mask)
    torch.testing.assert_close(
        attention_by_splits(query, key, value, attn_mask=mask).float(), want, rtol=2e-2, atol=2e-2
    )
