"""A small instance of every model type that transformers registers for its Auto classes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hotswap.models import hub
from hotswap.models.errors import EnvironmentMissing, HotswapError, InputError, SpecError
from hotswap.models.inputs import example_calls
from hotswap.models.trial import run_call
from hotswap.models.workload import Call, Workload

from .given import given_call
from .shrink import changed, ladder, merged, reduced

OVERRIDES = Path(__file__).with_name("overrides.json")
# What a small instance may have: a third of a gigabyte in fp32.
MOST_PARAMETERS = 80_000_000
BATCH, LENGTH = 2, 16
# CPU time after which no further reduction is tried: the strongest come first, and a trial has its own bound.
LADDER_SECONDS = 20.0


def model_types() -> list[str]:
    """Return the types that an Auto class of transformers builds models for, those that most classes know first."""
    from transformers.models.auto import modeling_auto as auto

    found: Counter[str] = Counter()
    for name, door in vars(auto).items():
        mapping = getattr(door, "_model_mapping", None)
        if name.startswith("AutoModel") and mapping is not None:
            found.update(list(mapping._model_mapping))
    return sorted(found, key=lambda name: (-found[name], name))


def small(model_type: str) -> tuple[Workload, str]:
    """Return a workload of the strongest reduction of `model_type` that builds and runs, and the reduction's name.

    Raises the error of the attempt that came furthest where none does within LADDER_SECONDS.
    """
    end = time.process_time() + LADDER_SECONDS
    fields, over = default_fields(model_type)
    tried: list[str] = []
    errors: list[tuple[int, HotswapError]] = []
    for how in ladder():
        made = merged(changed(fields, reduced(fields, how)), over)
        key = json.dumps(made, sort_keys=True, default=str)
        if key in tried or (errors and time.process_time() > end):
            continue
        tried.append(key)
        came = 0
        try:
            _check_size(made, model_type)
            came = 1
            model = hub.from_config_alone(made, name=model_type, dtype=torch.float32, device="cpu", seed=0)
            came = 2
            return _workload(model, model_type), str(how)
        except (EnvironmentMissing, InputError):  # no other size would help
            raise
        except HotswapError as error:
            errors.append((came, error))
    raise max(errors, key=lambda item: item[0])[1]


def default_fields(model_type: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of the type's default config, and what `overrides.json` says of it."""
    from transformers import CONFIG_MAPPING

    # A copy: configs made of other configs take their fields out of what they are given.
    over = {n: deepcopy(value) for n, value in overrides().get(model_type, {}).items() if n not in ("why", "inputs")}
    try:
        config = CONFIG_MAPPING[model_type](**deepcopy(over))
    except Exception as error:  # a config's own code may refuse to be made of nothing
        raise SpecError(f"{model_type}: its config has no default: {type(error).__name__}: {error}") from error
    return {**_told(config.to_dict()), "model_type": model_type}, over


def _told(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields; of parts without a type not those that every config has anyhow: they refuse them."""
    from transformers import PretrainedConfig

    plain = PretrainedConfig().to_dict()

    def inside(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        part = not value.get("model_type")
        left = {k: v for k, v in value.items() if not part or k not in plain or plain[k] != v}
        return {k: inside(v) for k, v in left.items()}

    return {name: inside(value) for name, value in fields.items()}


def _workload(model: Any, model_type: str) -> Workload:
    if described := overrides().get(model_type, {}).get("inputs"):
        calls: tuple[Call, ...] = (given_call(described),)
    else:
        lengths = (LENGTH,) if model.main_input_name == "input_ids" else ()
        calls = example_calls(model, batch=BATCH, seq_lens=lengths, seed=0)
    with torch.no_grad():
        run_call(model, calls[0])
    return Workload(model, calls, spec=model_type)


def _check_size(fields: Mapping[str, Any], name: str) -> None:
    config = hub._config_from_fields(fields, name)
    try:
        with torch.device("meta"):
            model = hub._door(config, trust_remote_code=False).from_config(config, dtype=torch.float32)
    except Exception as error:  # any reduction may contradict what the model's code expects
        raise hub._load_error(error, f"{name}: does not build") from error
    count = sum(p.numel() for p in model.parameters())
    if count > MOST_PARAMETERS:
        raise SpecError(f"{name}: {count / 1e6:.0f} M parameters are too many for a sweep")


@cache
def overrides() -> dict[str, dict[str, Any]]:
    """Return what single types need beside the generic reduction, by type, each with its reason under "why".

    What is under "inputs" describes the example call (`given.py`); the rest are fields of the config.
    """
    loaded: dict[str, dict[str, Any]] = json.loads(OVERRIDES.read_text(encoding="utf-8"))
    return loaded
