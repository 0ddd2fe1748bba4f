"""The generic reduction of configs: what becomes small, and what must stay in step."""

from __future__ import annotations

import torch

from hotswap.benchmarks.sweep_kit.given import given_call
from hotswap.benchmarks.sweep_kit.shrink import Reduction, changed, ladder, merged, reduced

FULL = Reduction(layers=2)


def test_width_and_heads_shrink_together() -> None:
    made = reduced({"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}, FULL)
    assert made == {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128}


def test_a_width_that_does_not_divide_stays() -> None:
    assert reduced({"hidden_size": 1100}, FULL)["hidden_size"] == 1100


def test_one_layer_of_each_kind_stays() -> None:
    kinds = ["linear", "linear", "linear", "full"] * 3
    made = reduced({"num_hidden_layers": 12, "layer_types": kinds}, FULL)
    assert made == {"num_hidden_layers": 2, "layer_types": ["linear", "full"]}


def test_a_table_by_layer_numbers_keeps_the_layers_that_stay() -> None:
    made = reduced({"num_hidden_layers": 6, "per_layer": {"0": "a", "1": "b", "5": "c"}}, FULL)
    assert made["per_layer"] == {"0": "a", "1": "b"}


def test_the_count_of_stages_stays_with_the_list_of_them() -> None:
    made = reduced({"num_layers": 4, "depths": [3, 4, 6, 5], "num_heads": [2, 4, 8, 16]}, FULL)
    assert made["num_layers"] == 4
    assert made["depths"] == [2, 2, 2, 2]


def test_special_tokens_move_into_the_reduced_vocabulary() -> None:
    made = reduced({"vocab_size": 50000, "eos_token_id": 49999, "image_token_id": 49998, "bos_token_id": 1}, FULL)
    assert made == {"vocab_size": 1024, "eos_token_id": 1023, "image_token_id": 1022, "bos_token_id": 1}


def test_special_tokens_beside_a_config_move_into_the_vocabulary_of_that_config() -> None:
    made = reduced({"text_config": {"vocab_size": 50000, "eos_token_id": 49999}, "image_token_id": 49998}, FULL)
    assert made == {"text_config": {"vocab_size": 1024, "eos_token_id": 1023}, "image_token_id": 991}


def test_configs_inside_are_reduced_too() -> None:
    made = reduced({"text_config": {"num_hidden_layers": 24}, "id2label": {0: "a"}}, FULL)
    assert made == {"text_config": {"num_hidden_layers": 2}, "id2label": {0: "a"}}


def test_only_what_changed_is_given_to_the_config() -> None:
    fields = {"model_type": "bert", "hidden_size": 768, "dropout": 0.1}
    assert changed(fields, reduced(fields, FULL)) == {"model_type": "bert", "hidden_size": 96}


def test_the_ladder_ends_with_no_reduction_at_all() -> None:
    fields = {"hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 30000, "image_size": 224, "num_experts": 8}
    assert reduced(fields, list(ladder())[-1]) == fields


def test_what_a_default_leaves_out_is_filled_in_by_what_its_name_implies() -> None:
    fields = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": None, "num_key_value_heads": None, "id2": {0: 1}}
    assert reduced(fields, Reduction(width=1)) == fields
    made = reduced(fields, Reduction(width=1, fill=True))
    assert (made["head_dim"], made["num_key_value_heads"]) == (16, 4)


def test_a_tower_is_made_as_wide_as_the_text_it_goes_into() -> None:
    fields = {"text_config": {"hidden_size": 64}, "vision_config": {"out_hidden_size": 48}}
    assert reduced(fields, Reduction(width=1, fill=True))["vision_config"] == {"out_hidden_size": 64}


def test_what_a_single_type_needs_is_put_into_the_configs_inside_too() -> None:
    assert merged({"text_config": {"a": 1, "b": 2}}, {"text_config": {"b": 3}}) == {"text_config": {"a": 1, "b": 3}}


def test_special_tokens_in_a_list_get_ids_of_their_own() -> None:
    fields = {"vocab_size": 50000, "marker_token_ids": [49998, 49999, 5], "eos_token_id": 49997}
    assert reduced(fields, FULL)["marker_token_ids"] == [1023, 1022, 5]
    assert reduced(fields, FULL)["eos_token_id"] == 1021


def test_a_backbone_keeps_a_layer_for_each_of_the_stages_it_hands_out() -> None:
    stages = ["stem", *(f"stage{i}" for i in range(1, 13))]
    made = reduced(
        {"num_hidden_layers": 12, "stage_names": stages, "out_features": ["stage3", "stage6", "stage12"]}, FULL
    )
    assert made == {
        "num_hidden_layers": 3,
        "out_features": ["stage1", "stage2", "stage3"],
        "out_indices": [1, 2, 3],
    }


def test_heads_that_do_not_divide_a_width_are_made_to() -> None:
    fields = {"hidden_size": 144, "num_attention_heads": 14}
    assert reduced(fields, Reduction(width=1, fill=True))["num_attention_heads"] == 2


def test_the_reach_of_an_index_is_no_count_of_experts() -> None:
    assert reduced({"index_topk": 2048, "moe_topk": 12}, FULL) == {"index_topk": 2048, "moe_topk": 2}


def test_described_inputs_are_equal_each_time() -> None:
    described = {"a": {"shape": [2, 3]}, "b": {"shape": [4], "below": 7}, "c": {"shape": [2], "fill": True}, "d": True}
    one, other = given_call(described).kwargs, given_call(described).kwargs
    assert torch.equal(one["a"], other["a"])
    assert torch.equal(one["b"], other["b"])
    assert int(one["b"].max()) < 7
    assert one["c"].tolist() == [True, True]
    assert one["d"] is True
