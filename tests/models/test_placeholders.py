"""Texts beside images hold a token for each feature of an image, whichever way the model takes images."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hotswap.models import hub
from hotswap.models.inputs import example_calls
from hotswap.models.trial import run_call

TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
}
INTERNVL = {
    "model_type": "internvl",
    "image_token_id": 99,
    "text_config": {"model_type": "qwen2", **TEXT},
    "vision_config": {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "image_size": [28, 28],
        "patch_size": [14, 14],
    },
}
QWEN2_VL = {
    "model_type": "qwen2_vl",
    "image_token_id": 99,
    "text_config": {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}},
    "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 4},
}


def model_and_inputs(config: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    model = hub.from_config_alone(config, name=config["model_type"], dtype=torch.float32, device="cpu", seed=0)
    (call,) = example_calls(model, batch=2, seq_lens=[16], seed=0)
    with torch.no_grad():
        run_call(model, call)
    return model, dict(call.kwargs)


def test_a_text_has_as_many_placeholders_as_the_model_makes_features_of_its_image() -> None:
    model, given = model_and_inputs(INTERNVL)
    with torch.no_grad():
        features = model.get_image_features(given["pixel_values"]).pooler_output
    each = features.shape[0] * features.shape[1] // 2
    assert (given["input_ids"] == 99).sum(1).tolist() == [each, each]
    assert given["input_ids"].shape == given["attention_mask"].shape == (2, 16 + each)


def test_images_in_patches_come_with_their_grid_and_a_token_for_each_merged_patch() -> None:
    _, given = model_and_inputs(QWEN2_VL)
    assert given["image_grid_thw"].shape == (2, 3)
    assert len(given["pixel_values"]) == int(given["image_grid_thw"].prod(1).sum())
    assert 4 * (given["input_ids"] == 99).sum() == len(given["pixel_values"])
    assert torch.equal(given["mm_token_type_ids"] == 1, given["input_ids"] == 99)


@pytest.mark.parametrize("config", [INTERNVL, QWEN2_VL], ids=lambda c: c["model_type"])
def test_the_image_is_read(config: dict[str, Any]) -> None:
    model, given = model_and_inputs(config)
    with torch.no_grad():
        one = model(**given).last_hidden_state
        other = model(**{**given, "pixel_values": given["pixel_values"] + 1}).last_hidden_state
    assert not torch.equal(one, other)
