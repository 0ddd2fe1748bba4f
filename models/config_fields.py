"""Read from a model's config and modules what its inputs must look like; no architecture is known by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

IMAGE_SIDE = 224


def configs(config: Any) -> Iterator[Any]:
    """Yield the config and those inside it, the text one first."""
    yield config
    names = sorted(getattr(config, "sub_configs", {}), key=lambda name: (name != "text_config", name))
    for name in names:
        inner = getattr(config, name, None)
        if inner is not None:
            yield from configs(inner)


def field(config: Any, names: Sequence[str]) -> Any:
    """Return the first of the fields `names` that the config, or one inside it, has set; None if none has."""
    for each in configs(config):
        for name in names:
            value = getattr(each, name, None)
            if value is not None:
                return value
    return None


def special_tokens(config: Any) -> set[int]:
    found: set[int] = set()
    for each in configs(config):
        for name, value in each.to_dict().items():
            if name.endswith(("_token_id", "_token_ids", "_token_index")):
                found.update(v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int))
    return found


def vocabulary(model: Any, config: Any) -> int | None:
    """Return how many tokens a text may be made of: the config's count, or the rows of the table where it has fewer."""
    size = field(config, ("vocab_size",))
    try:
        rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except (AttributeError, NotImplementedError):  # it reads no tokens, or has several tables
        rows = None
    known = [count for count in (size, rows) if isinstance(count, int)]
    return min(known) if known else None


def position_limit(model: Any, config: Any) -> int | None:
    """Return how many positions a learned table of positions serves, None where the model has no such table."""
    size = field(config, ("max_position_embeddings",))
    if not isinstance(size, int):
        return None
    words = field(config, ("vocab_size",))
    for module in model.modules():
        # Some tables have a few rows more than positions, and begin behind a padding row.
        if (
            isinstance(module, nn.Embedding)
            and size <= module.num_embeddings <= size + 2
            and module.num_embeddings != words
        ):
            behind = 0 if module.padding_idx is None else module.padding_idx + 1
            return min(size, module.num_embeddings - behind)
    return None


def time_convolutions(model: nn.Module, bins: int) -> list[nn.Conv1d]:
    """Return the 1-d convolutions beside the first one that takes `bins` channels, it included; [] where none does."""
    for parent in model.modules():
        beside = [child for child in parent.children() if isinstance(child, nn.Conv1d)]
        if beside and beside[0].in_channels == bins:
            return beside
    return []


def height_width(size: Any) -> tuple[int, int]:
    if size is None:
        return IMAGE_SIDE, IMAGE_SIDE
    if isinstance(size, dict):
        return int(size["height"]), int(size["width"])
    if isinstance(size, list | tuple):
        return int(size[0]), int(size[-1])
    return int(size), int(size)
