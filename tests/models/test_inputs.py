"""Example inputs fit whatever describes itself, whichever its modality."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hotswap.models import hub
from hotswap.models.errors import InputError
from hotswap.models.inputs import check_fit, example_calls
from hotswap.models.trial import run_call
from hotswap.models.workload import Call

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
SEQ2SEQ = {
    **{
        f"{side}_{what}": value
        for side in ("encoder", "decoder")
        for what, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 64))
    },
    "d_model": 32,
}
ENDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
VISION = {"image_size": 32, "patch_size": 16}
MODELS: dict[str, dict[str, Any]] = {
    "encoder": {
        "model_type": "distilbert",
        "dim": 32,
        "n_layers": 1,
        "n_heads": 2,
        "hidden_dim": 64,
        "vocab_size": 100,
    },
    "encoder whose positions follow a padding row": {
        "model_type": "roberta",
        **SMALL,
        **ENDS,
        "vocab_size": 100,
        "max_position_embeddings": 66,
    },
    "encoder without a forward of named options": {
        "model_type": "modernbert",
        **SMALL,
        **ENDS,
        "vocab_size": 100,
        "cls_token_id": 0,
        "sep_token_id": 2,
    },
    "clips": {
        "model_type": "vjepa2",
        **SMALL,
        "crop_size": 32,
        "frames_per_clip": 4,
        "pred_num_hidden_layers": 1,
        "pred_hidden_size": 32,
        "pred_num_attention_heads": 2,
    },
    "time series that look back further than their context": {
        "model_type": "time_series_transformer",
        "prediction_length": 4,
        "context_length": 8,
        "num_time_features": 1,
        "lags_sequence": [1, 5],
        "d_model": 16,
    },
    "decoder": {"model_type": "gpt_neox", **SMALL, "vocab_size": 100},
    "decoder with more rows than positions": {
        "model_type": "opt",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "ffn_dim": 64,
        "vocab_size": 100,
        "max_position_embeddings": 64,
        "word_embed_proj_dim": 32,
    },
    "bare decoder": {"model_type": "llama", **SMALL, "vocab_size": 100, "architectures": ["LlamaModel"]},
    "text to text": {
        "model_type": "t5",
        "d_model": 32,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 1,
        "num_heads": 2,
        "vocab_size": 100,
    },
    "text to class, by the end of the text": {
        "model_type": "bart",
        **SEQ2SEQ,
        **ENDS,
        "vocab_size": 100,
        "architectures": ["BartForSequenceClassification"],
    },
    "image": {"model_type": "vit", **SMALL, **VISION},
    "image of no set size": {
        "model_type": "resnet",
        "embedding_size": 8,
        "hidden_sizes": [8, 8, 8, 8],
        "depths": [1, 1, 1, 1],
        "architectures": ["ResNetForImageClassification"],
    },
    "image as rows of patches": {"model_type": "siglip2_vision_model", **SMALL, "patch_size": 4, "num_patches": 144},
    "images whose patches are merged by a number each": {
        "model_type": "video_llama_3_vision",
        **SMALL,
        "patch_size": 4,
    },
    "queries of another's states": {
        "model_type": "blip_2_qformer",
        **SMALL,
        "encoder_hidden_size": 48,
        "vocab_size": 100,
    },
    "characters": {"model_type": "canine", **SMALL},
    "spectrogram, bins first, with a mask": {
        "model_type": "audioflamingo3_encoder",
        **SMALL,
        "num_mel_bins": 8,
        "max_source_positions": 50,
    },
    "video": {"model_type": "videomae", **SMALL, **VISION, "num_frames": 4},
    "image and text": {
        "model_type": "clip",
        "projection_dim": 16,
        "text_config": {**SMALL, **ENDS, "vocab_size": 100},
        "vision_config": {**SMALL, **VISION},
    },
    "waveform": {
        "model_type": "wav2vec2",
        **SMALL,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2,
        "architectures": ["Wav2Vec2ForCTC"],
    },
    "spectrogram, frames first": {"model_type": "audio-spectrogram-transformer", **SMALL, "max_length": 128},
    "spectrogram, bins first": {
        "model_type": "whisper",
        **SEQ2SEQ,
        **ENDS,
        "vocab_size": 100,
        "num_mel_bins": 8,
        "max_source_positions": 50,
        "decoder_start_token_id": 3,
    },
    "spectrogram, frames first before a convolution over bins": {
        "model_type": "speech_to_text",
        **SEQ2SEQ,
        **ENDS,
        "vocab_size": 100,
        "conv_channels": 32,
        "input_feat_per_channel": 16,
        "decoder_start_token_id": 3,
        "architectures": ["Speech2TextForConditionalGeneration"],
    },
}


def _build(fields: dict[str, Any]) -> Any:
    return hub.from_config_alone(fields, name=fields["model_type"], dtype=torch.float32, device="cpu", seed=0)


@pytest.mark.parametrize("kind", list(MODELS))
def test_the_model_runs_on_its_example(kind: str) -> None:
    model = _build(MODELS[kind])
    (call,) = example_calls(model, batch=2, seq_lens=(), seed=0)
    check_fit(model, (call,), kind)
    with torch.no_grad():
        output = run_call(model, call)
    main = call.kwargs.get(model.main_input_name, next(iter(call.kwargs.values())))
    assert main.shape[0] == 2 or "grid_thw" in call.kwargs  # patches of all images in a row
    tensors = [value for value in output.values() if isinstance(value, torch.Tensor)]
    assert tensors
    # A call is one forward over whole sequences: no cache comes back.
    assert output.get("past_key_values") is None


def test_encoders_and_decoders_have_their_usual_sizes() -> None:
    (encoder,) = example_calls(_build(MODELS["encoder"]), batch=None, seq_lens=(), seed=0)
    (decoder,) = example_calls(_build(MODELS["decoder"]), batch=None, seq_lens=(), seed=0)
    assert encoder.kwargs["input_ids"].shape == encoder.kwargs["attention_mask"].shape == (8, 128)
    assert decoder.kwargs["input_ids"].shape == (1, 512)


def test_each_length_is_a_call_with_a_name_and_a_weight() -> None:
    calls = example_calls(_build(MODELS["encoder"]), batch=3, seq_lens=(16, 32), seed=0)
    assert [c.kwargs["input_ids"].shape for c in calls] == [(3, 16), (3, 32)]
    assert [(c.name, c.weight) for c in calls] == [("seq16", 1.0), ("seq32", 1.0)]


def test_tokens_are_ordinary_words_of_the_vocabulary() -> None:
    fields = {**MODELS["bare decoder"], "vocab_size": 8, "bos_token_id": 0, "eos_token_id": [1, 7], "pad_token_id": 2}
    (call,) = example_calls(_build(fields), batch=4, seq_lens=(64,), seed=0)
    assert set(call.kwargs["input_ids"].flatten().tolist()) == {3, 4, 5, 6}


def test_equal_seeds_give_equal_inputs() -> None:
    model = _build(MODELS["encoder"])
    first, second, other = (
        example_calls(model, batch=2, seq_lens=(), seed=s)[0].kwargs["input_ids"] for s in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_floats_have_the_models_dtype() -> None:
    model = _build(MODELS["image"]).to(torch.bfloat16)
    (call,) = example_calls(model, batch=1, seq_lens=(), seed=0)
    assert call.kwargs["pixel_values"].dtype is torch.bfloat16


def test_a_length_beyond_the_table_of_positions_is_refused() -> None:
    model = _build(MODELS["encoder whose positions follow a padding row"])
    with pytest.raises(InputError, match=r"--seq-len 65: Roberta\w+ has a table of 64 positions; give at most 64"):
        example_calls(model, batch=1, seq_lens=(65,), seed=0)
    (call,) = example_calls(model, batch=1, seq_lens=(64,), seed=0)
    run_call(model, call)


def test_a_required_input_nobody_knows_is_named() -> None:
    class Peculiar(torch.nn.Module):
        main_input_name = "input_ids"

        def __init__(self, config: Any) -> None:
            super().__init__()
            self.config = config

        def can_generate(self) -> bool:
            return False

        def forward(self, input_ids: Any, graph: Any, scale: float = 1.0) -> Any:
            return input_ids

    model = Peculiar(_build(MODELS["encoder"]).config)
    with pytest.raises(
        InputError, match=r"Peculiar.forward\(input_ids, graph, scale=\): no example can be made for 'graph'"
    ):
        example_calls(model, batch=1, seq_lens=(), seed=0)


def _odd(forward: Any, **attributes: Any) -> Any:
    """Return a model that describes itself, with the config of a small ViT and the given forward."""
    members = {"main_input_name": "pixel_values", "can_generate": lambda self: False, **attributes, "forward": forward}
    model = type("Odd", (torch.nn.Module,), members)()
    model.config = _build(MODELS["image"]).config
    return model


def test_images_to_be_matched_come_in_pairs() -> None:
    def forward(self: Any, pixel_values: Any) -> Any:
        if pixel_values.ndim != 5 or pixel_values.shape[1] != 2:
            raise ValueError("pairs")
        return pixel_values

    (call,) = example_calls(_odd(forward), batch=3, seq_lens=(), seed=0)
    assert call.kwargs["pixel_values"].shape == (3, 2, 3, 32, 32)


def test_flattened_patches_begin_with_their_row_and_column() -> None:
    def forward(self: Any, flattened_patches: Any, attention_mask: Any = None) -> Any:
        return flattened_patches

    (call,) = example_calls(_odd(forward, main_input_name="flattened_patches"), batch=2, seq_lens=(), seed=0)
    patches = call.kwargs["flattened_patches"]
    assert patches.shape == (2, 144, 2 + 3 * 16 * 16)
    assert patches[0, 13, :2].tolist() == [2, 2]
    assert call.kwargs["attention_mask"].shape == (2, 144)


def test_a_model_may_name_several_main_inputs() -> None:
    def forward(self: Any, pixel_values: Any, task_input_ids: Any) -> Any:
        return pixel_values

    model = _odd(forward, main_input_name=["pixel_values", "task_input_ids"])
    assert hub.is_transformers_model(model)
    (call,) = example_calls(model, batch=2, seq_lens=(), seed=0)
    assert set(call.kwargs) == {"pixel_values", "task_input_ids"}
    assert call.kwargs["task_input_ids"].dtype is torch.int64


def test_parts_are_made_by_the_ends_of_their_names() -> None:
    def forward(self: Any, query_input_ids: Any, query_attention_mask: Any, noise_embeds: Any) -> Any:
        return noise_embeds

    (call,) = example_calls(_odd(forward, main_input_name="query_input_ids"), batch=2, seq_lens=(), seed=0)
    assert call.kwargs["query_attention_mask"].tolist() == torch.ones_like(call.kwargs["query_input_ids"]).tolist()
    assert call.kwargs["noise_embeds"].shape == (2, 128, 32)


def test_a_call_that_does_not_fit_is_told_the_parameters() -> None:
    class Two(torch.nn.Module):
        def forward(self, x: Any, *rest: Any, y: int = 0, **more: Any) -> Any:
            return x

    check_fit(Two(), (Call(args=(1, 2, 3), kwargs={"z": 1}),), "here")
    with pytest.raises(InputError, match=r"here: call does not fit Two.forward\(x, \*rest, y=, \*\*more\): missing"):
        check_fit(Two(), (Call(kwargs={"y": 1}),), "here")
