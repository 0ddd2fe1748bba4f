from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hotswap
from hotswap.optimizer.winner import Winner

MakeWinners = Callable[..., list[Winner]]
WriteRun = Callable[[list[Winner]], Path]


@pytest.fixture(scope="module")
def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]


def test_a_patched_llama_generates_the_same_tokens_and_comes_back_exactly(
    llama: Any, make_winners: MakeWinners, write_run: WriteRun
) -> None:
    ids = torch.randint(0, 128, (2, 9), generator=torch.Generator().manual_seed(0))
    run = write_run(make_winners(llama.forward, input_ids=ids, use_cache=False))
    before = list(llama.__dict__.items())
    with torch.no_grad():
        logits = llama(input_ids=ids).logits
        tokens = llama.generate(ids, max_new_tokens=32, do_sample=False)
        with hotswap.patched(llama, run) as made:
            torch.testing.assert_close(llama(input_ids=ids).logits, logits, rtol=0, atol=0)
            assert torch.equal(llama.generate(ids, max_new_tokens=32, do_sample=False), tokens)
            ran = {e.task: e.kernel_calls for e in made.engagement()}
            assert made.compiles <= 5  # with and without a cache, prefill, first and later steps
    # Two layers, two norms in each but the first, at every one of 33 steps and more.
    assert max(ran.values()) >= 33 * 3
    after = list(llama.__dict__.items())
    assert [k for k, _ in after] == [k for k, _ in before]
    assert all(a is b for (_, a), (_, b) in zip(after, before, strict=True))


def test_a_patched_llama_saves_and_loads_with_its_embeddings_tied(
    llama: Any, make_winners: MakeWinners, write_run: WriteRun, tmp_path: Path
) -> None:
    ids = torch.randint(0, 128, (1, 7), generator=torch.Generator().manual_seed(1))
    run = write_run(make_winners(llama.forward, input_ids=ids, use_cache=False))
    with torch.no_grad(), hotswap.patched(llama, run):
        logits = llama(input_ids=ids).logits
        llama.save_pretrained(tmp_path / "saved")
        loaded = type(llama).from_pretrained(tmp_path / "saved").eval()
        torch.testing.assert_close(loaded(input_ids=ids).logits, logits, rtol=0, atol=0)
        assert llama.lm_head.weight is llama.model.embed_tokens.weight
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
