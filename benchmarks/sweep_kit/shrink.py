"""Make a model type small enough to sweep: numeric fields of its config reduced, by what they count, until it runs.

Nothing here knows a model: a field is read by the words of its name and by its value, and whether a reduction was right
is decided by building the model and running it. What single types need beside this is in `overrides.json`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

Fields = dict[str, Any]

MOST_STAGES = 8
# How many special tokens a config may have of its own.
_OWN_TOKENS = 32

_LAYERS = re.compile(
    r"layers?$|^n_layers?$|depths?$|_blocks$|_repeats$|^num_blocks|blocks_per|layers_per|_layers_|num_stacks"
)
_HEADS = re.compile(r"heads$|^n_head$|num_head|head_num")
_WIDTH = re.compile(
    r"(size|dim|dims|width|channels|embd|embed|filters|hidden|model|inner|ffn|ff|rank|state|upsample_group)s?$"
)
_WIDTH_TOO = re.compile(r"^(d_|hidden_|intermediate|embed_|conv_dim|dim_)|_(dim|size|width|channels|hidden)_")
_NOT_WIDTH = re.compile(
    r"vocab|patch|image|kernel|window|stride|codebook|chunk|max_|head_dim|kv_dim|d_kv|block_size|pool|pos_emb"
)
_VOCAB = re.compile(r"vocab")
_POSITIONS = re.compile(r"max_position|^n_positions$|^n_ctx$|max_seq|max_sequence")
_EXPERTS = re.compile(r"experts?$|expert_num$|^moe_num_experts|n_routed|num_local")
_EXPERTS_USED = re.compile(r"per_tok|(?<!index_)top_?k|moe_k$|per_token|n_group|topk_group|experts_k")
_IMAGE = re.compile(r"(image|img|input|sample)_(size|resolution)$")
_OF_MODEL, _OF_HEADS = ("hidden_size", "d_model", "n_embd"), ("num_attention_heads", "n_head")
_SPECIAL = re.compile(r"_token_(id|index)s?$|_(id|index)$")


@dataclass(frozen=True)
class Reduction:
    """What is reduced, and how far (0: not). width: what widths and heads are divided by; image: longest side.

    fill: give what a default config leaves out, or lets contradict another field, the value that its name implies.
    """

    width: int = 8
    layers: int = 1
    vocab: int = 1024
    positions: int = 512
    experts: int = 4
    image: int = 64
    fill: bool = False

    def __str__(self) -> str:
        left = (f"{name}={value}" for name, value in vars(self).items() if value)
        return ", ".join(left)


def ladder() -> Iterator[Reduction]:
    """Yield reductions from the strongest to none at all."""
    full = Reduction()
    yield from (replace(full, width=width, fill=fill) for width in (8, 4, 2) for fill in (False, True))
    yield from (replace(full, image=0, width=width) for width in (8, 4, 2))
    one_less = ({"layers": 2}, {"layers": 4}, {"layers": 0}, {"vocab": 0}, {"positions": 0}, {"experts": 0})
    yield from (replace(full, image=image, **change) for change in one_less for image in (64, 0))  # type: ignore[arg-type]
    yield from (replace(full, width=1, fill=fill) for fill in (False, True))
    yield from (replace(full, width=1, image=0, **change) for change in ({}, *one_less))  # type: ignore[arg-type]
    yield Reduction(width=1, layers=0, vocab=0, positions=0, experts=0, image=0)


def reduced(fields: Mapping[str, Any], how: Reduction) -> Fields:
    """Return a config's fields, those of the configs inside it too, with every number reduced as `how` says."""
    stages = {len(v) for v in fields.values() if isinstance(v, list) and v and not isinstance(v[0], str)}
    layers = _layer_count(fields)
    if layers in stages and layers <= MOST_STAGES:
        layers = 0  # it says how long another list is
    outs = _stages_out(fields, layers)
    kept = _kept_layers(fields, layers, how, least=outs)
    vocab = next((v for k, v in fields.items() if k == "vocab_size" and isinstance(v, int)), None)
    made: Fields = {}
    for name, value in fields.items():
        if isinstance(value, Mapping) and layers and value and all(str(key).isdigit() for key in value):
            made[name] = {key: value[old] for key, old in _renumbered(value, kept)}
        elif isinstance(value, Mapping):
            made[name] = reduced(value, how)
        elif isinstance(value, int) and value in stages and value <= MOST_STAGES and _LAYERS.search(name):
            made[name] = value  # how many stages there are, as the length of a list of theirs tells
        elif isinstance(value, list | tuple):
            made[name] = _list(name, list(value), layers, kept, how)
        elif (
            isinstance(value, float)
            and value > 1.0
            and how.layers
            and re.search(r"depth_(coefficient|multiplier)", name)
        ):
            made[name] = 1.0
        elif isinstance(name, str) and isinstance(value, int) and not isinstance(value, bool):
            made[name] = _number(name, value, kept, how)
        else:
            made[name] = value
    if outs and len(kept) < layers:
        made |= {"out_features": [f"stage{len(kept) - i}" for i in reversed(range(outs))]}
        made |= {"out_indices": [len(kept) - i for i in reversed(range(outs))]}
        made.pop("stage_names")  # they follow from the layers
    small = made.get("vocab_size")
    if vocab is not None and isinstance(small, int) and small < vocab:
        _move_special_tokens(made, small)
    inside = [v["vocab_size"] for v in made.values() if isinstance(v, Mapping) and isinstance(v.get("vocab_size"), int)]
    if vocab is None and inside and min(inside) > 2 * _OWN_TOKENS:
        # Below those that the config inside has moved to the end of the same vocabulary.
        _move_special_tokens(made, min(inside) - _OWN_TOKENS)
    return _filled(made) if how.fill else made


def _filled(fields: Fields) -> Fields:
    """Return the fields with what is None but that attention or routing needs, and towers as wide as the text."""
    made = dict(fields)
    width, heads = (
        next((made[n] for n in names if isinstance(made.get(n), int)), 0) for names in (_OF_MODEL, _OF_HEADS)
    )
    if heads and width % heads:
        heads = math.gcd(width, heads)
        made |= {name: heads for name in _OF_HEADS if name in made}
    implied = {"head_dim": width // heads, "num_key_value_heads": heads} if width and heads else {}
    implied |= {name: 2 for name in map(str, made) if _EXPERTS_USED.search(name) and "group" not in name}
    implied |= {name: 1 for name in made if name in ("n_group", "topk_group")}
    made |= {name: value for name, value in implied.items() if name in made and made[name] is None}
    text = made.get("text_config")
    if isinstance(text, Mapping) and isinstance(text.get("hidden_size"), int):
        for name, value in made.items():
            if isinstance(value, Mapping) and "out_hidden_size" in value:
                made[name] = {**value, "out_hidden_size": text["hidden_size"]}
    return made


def changed(fields: Mapping[str, Any], made: Mapping[str, Any]) -> Fields:
    """Return what of `made` differs from `fields`, with what the type must have: the rest has its default anyhow."""
    return {name: value for name, value in made.items() if name == "model_type" or value != fields.get(name)}


def merged(fields: Mapping[str, Any], over: Mapping[str, Any]) -> Fields:
    """Return `fields` with those of `over` in their place, inside configs too."""
    inside = {
        n: merged(fields[n], v)
        for n, v in over.items()
        if isinstance(v, Mapping) and isinstance(fields.get(n), Mapping)
    }
    return {**fields, **over, **inside}


def _renumbered(value: Mapping[str, Any], kept: list[int]) -> Iterator[tuple[Any, Any]]:
    """Yield (new key, old key) of what a table by layer numbers says of the layers that stay."""
    keys = {int(key): key for key in value}
    return ((type(keys[old])(new), keys[old]) for new, old in enumerate(kept) if old in keys)


def _layer_count(fields: Mapping[str, Any]) -> int:
    return _first(fields, ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"))


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """Return the first of `names` that is a number, 0 where none is."""
    return next((fields[n] for n in names if isinstance(fields.get(n), int)), 0)


def _stages_out(fields: Mapping[str, Any], layers: int) -> int:
    """Return how many layers of a backbone hand out what they make, 0 where its stages are not single layers."""
    stages, out = fields.get("stage_names"), fields.get("out_features")
    single = isinstance(stages, list) and len(stages) == layers + 1 and stages[-1] == f"stage{layers}"
    return len(out) if single and isinstance(out, list) else 0


def _kept_layers(fields: Mapping[str, Any], layers: int, how: Reduction, *, least: int = 0) -> list[int]:
    """Return which layers stay: one of each kind that a list of layer kinds names, `how.layers` or `least` at least."""
    if not layers or not how.layers or layers <= how.layers:
        return list(range(layers))
    kinds = next((v for v in fields.values() if isinstance(v, list) and len(v) == layers and isinstance(v[0], str)), [])
    first = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    more = [i for i in range(layers) if i not in first]
    return sorted((first + more)[: max(how.layers, len(first), least)])


def _list(name: str, values: list[Any], layers: int, kept: list[int], how: Reduction) -> list[Any]:
    if layers and len(values) == layers and len(kept) < layers:
        values = [values[i] for i in kept]
    numbers = bool(values) and all(isinstance(v, int) and not isinstance(v, bool) for v in values)
    if not numbers:
        return [reduced(v, how) if isinstance(v, Mapping) else v for v in values]
    if re.search(r"layer|ind(ex|ices)|idx", name) and len(kept) < layers and "stage" not in name:
        return [v for v in values if v < len(kept)] or values[:1]
    return [_number(name, v, kept, how) for v in values]


def _number(name: str, value: int, kept: list[int], how: Reduction) -> int:
    if value <= 0 or _SPECIAL.search(name):
        return value
    if _VOCAB.search(name) and ("size" in name or name.endswith("vocab")):
        return min(value, how.vocab) if how.vocab else value
    if _POSITIONS.search(name):
        return min(value, how.positions) if how.positions else value
    if _IMAGE.search(name):
        return (
            how.image
            if how.image and value > how.image and value % how.image == 0
            else min(value, 224 if how.image else value)
        )
    if _EXPERTS_USED.search(name):
        return min(value, how.experts // 2) if how.experts else value
    if _EXPERTS.search(name):
        return min(value, how.experts) if how.experts else value
    if _LAYERS.search(name):
        most = len(kept) if kept and name == "num_hidden_layers" else max(how.layers, len(kept) if kept else 0)
        return min(value, most) if how.layers else value
    if _HEADS.search(name):
        return value // math.gcd(value, how.width)
    if _NOT_WIDTH.search(name):
        return value
    if (_WIDTH.search(name) or _WIDTH_TOO.search(name)) and value % how.width == 0 and value // how.width >= 8:
        return value // how.width
    return value


def _move_special_tokens(fields: Fields, vocab: int) -> None:
    """Give special tokens beyond the reduced vocabulary ids of their own at its end."""
    free = vocab - 1
    for name, value in fields.items():
        if re.search(r"_token_(id|index)$", str(name)) and isinstance(value, int) and value >= vocab:
            fields[name] = free
            free -= 1
        elif re.search(r"_token_ids?$", str(name)) and isinstance(value, list):
            beyond = [v for v in value if isinstance(v, int) and v >= vocab]
            fields[name] = [free - beyond.index(v) if v in beyond else v for v in value]
            free -= len(beyond)
