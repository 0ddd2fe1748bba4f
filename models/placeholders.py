"""Give a text a token for each feature that a model makes of the images or sounds beside it.

Models that read several modalities put the features of one in the place of tokens of their own, and refuse a text that
has another number of them. How many there are is found by making the features, on shapes alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .config_fields import field
from .input_choice import on_shapes

_SOURCES = {"image": "pixel_values", "audio": "input_features"}


def placed(model: Any, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments `made` with placeholders ahead of the text, as many a row as its images and sounds need.

    They are as they were where the model has no tokens for that, or does not say what features it makes.
    """
    result = dict(made)
    for kind, source in _SOURCES.items():
        token = field(model.config, (f"{kind}_token_id", f"{kind}_token_index"))
        if "input_ids" not in made or source not in made or not isinstance(token, int):
            continue
        count = _features(model, kind, made) // len(made["input_ids"])
        if count:
            _put_ahead(model, result, token, count)
    return result


def _put_ahead(model: Any, made: dict[str, Any], token: int, count: int) -> None:
    ids = made["input_ids"]
    made["input_ids"] = ids = torch.cat([ids.new_full((len(ids), count), token), ids], 1)
    if "attention_mask" in made:
        made["attention_mask"] = torch.ones_like(ids)
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        made["mm_token_type_ids"] = (ids == token).long()


def _features(model: Any, kind: str, made: Mapping[str, Any]) -> int:
    """Return how many features, each as wide as a token's embedding, the model makes of all images or sounds."""
    if "image_grid_thw" in made:  # how many follow from the grid's values, by the patches that are merged into one
        side = int(field(model.config, ("spatial_merge_size",)) or 2)
        return int(made["image_grid_thw"].prod(1).sum()) // side**2
    method = f"get_{kind}_features"
    makes = getattr(model, method, None)
    embed = model.get_input_embeddings()
    if makes is None or not hasattr(embed, "embedding_dim"):
        return 0
    takes = inspect.signature(makes).parameters
    _, output = on_shapes(model, method, {name: value for name, value in made.items() if name in takes})
    features = getattr(output, "pooler_output", output)
    numbers = sum(leaf.numel() for leaf in tree_leaves(features) if isinstance(leaf, torch.Tensor))
    return numbers // int(embed.embedding_dim)
