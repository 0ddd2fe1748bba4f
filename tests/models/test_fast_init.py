"""Weights made fast are distributed as asked, and nothing but large fills is touched."""

from __future__ import annotations

import torch
from torch import nn

from hotswap.models import hub
from hotswap.models.fast_init import BLOCK, SMALL, FastInit
from hotswap.models.zoo.catalog import config


def test_a_large_normal_fill_has_the_mean_and_spread_asked_for() -> None:
    values = torch.empty(3 * BLOCK + 5)
    with FastInit():
        values.normal_(1.0, 0.02)
    # The block is the sample: standard errors of its mean and deviation.
    assert abs(float(values.double().mean()) - 1.0) < 5 * 0.02 / BLOCK**0.5
    assert abs(float(values.double().std()) - 0.02) < 5 * 0.02 / (2 * BLOCK) ** 0.5


def test_a_large_uniform_fill_spans_its_interval() -> None:
    values = torch.empty(2 * BLOCK)
    with FastInit():
        values.uniform_(-3.0, 5.0)
    assert -3.0 <= float(values.min()) < -2.99
    assert 4.99 < float(values.max()) <= 5.0


def test_every_element_of_any_size_is_filled() -> None:
    for size in (SMALL + 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 17):
        values = torch.full((size,), 100.0)
        with FastInit() as fast:
            fast._start = BLOCK - 3  # begins near the block's end
            values.normal_()
        assert float(values.max()) < 10, size


def test_rows_and_layers_differ() -> None:
    first, second = torch.empty(1024, 2048), torch.empty(1024, 2048)
    with FastInit():
        first.normal_()
        second.normal_()
    assert len({tuple(row[:4].tolist()) for row in first}) == 1024
    assert not torch.equal(first, second)


def test_small_fills_and_fills_with_a_generator_are_torchs_own() -> None:
    torch.manual_seed(3)
    plain_small = torch.empty(100).normal_()
    plain_seeded = torch.empty(2 * SMALL).normal_(generator=torch.Generator().manual_seed(7))
    torch.manual_seed(3)
    with FastInit() as fast:
        small = torch.empty(100).normal_()
        seeded = torch.empty(2 * SMALL).normal_(generator=torch.Generator().manual_seed(7))
    assert torch.equal(small, plain_small)
    assert torch.equal(seeded, plain_seeded)
    assert fast.tiled == 0


def test_a_truncated_normal_stays_within_its_bounds() -> None:
    weight = torch.empty(2 * BLOCK)
    with FastInit() as fast:
        nn.init.trunc_normal_(weight, std=0.02, a=-0.03, b=0.03)
    assert fast.tiled > 0
    assert float(weight.abs().max()) <= 0.03


def test_equal_seeds_make_equal_models_and_leave_the_callers_stream_alone() -> None:
    fields = {**config("llama-3.2-1b@tiny"), "vocab_size": 4096}
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)

    def weights(seed: int) -> dict[str, torch.Tensor]:
        built = hub.from_config_alone(fields, name="tiny", dtype=torch.bfloat16, device="cpu", seed=seed)
        return dict(built.state_dict())

    first = weights(5)
    assert torch.equal(torch.rand(3), expected)
    second, other = weights(5), weights(6)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_buffers_and_ties_are_those_of_a_plain_build() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    fields = dict(config("llama-3.2-1b@tiny"))
    fast = hub.from_config_alone(fields, name="tiny", dtype=torch.bfloat16, device="cpu", seed=0)
    plain = LlamaForCausalLM(LlamaConfig(**{key: value for key, value in fields.items() if key != "model_type"}))
    expected = dict(plain.named_buffers())
    assert expected
    for name, buffer in fast.named_buffers():
        assert buffer.dtype == expected[name].dtype, name
        assert torch.equal(buffer, expected[name]), name
    assert fast.lm_head.weight is fast.model.embed_tokens.weight
