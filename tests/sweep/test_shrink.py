"""The generic reduction of configs: what becomes small, and what must stay in step."""

from __future__ import annotations

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
