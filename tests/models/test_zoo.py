"""The zoo's figures are the public models', and each size loads and runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hotswap.models import hub
from hotswap.models.errors import ResourceExhausted, SpecError
from hotswap.models.spec import LoadOptions, load
from hotswap.models.trial import run_call
from hotswap.models.zoo.catalog import config, describe, names

# Parameters of the public checkpoints, tied ones counted once.
PUBLIC = {
    "bert-base": 109_482_240,
    "gpt2": 124_439_808,
    "llama-3.2-1b": 1_235_814_400,
    "mamba": 129_135_360,
    "mixtral": 46_702_792_704,
    "qwen3-0.6b": 596_049_920,
    "vit-l16": 304_326_632,
    "whisper-small": 241_734_912,
}


def _on_shapes_alone(spec: str) -> Any:
    built = hub._config_from_fields(config(spec), spec)
    with torch.device("meta"):
        return hub._door(built, trust_remote_code=False).from_config(built, dtype=torch.bfloat16)


def test_the_zoo_holds_the_models_whose_figures_are_checked_here() -> None:
    assert set(names()) == set(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_full_size_has_as_many_parameters_as_the_public_model(name: str) -> None:
    model = _on_shapes_alone(f"{name}@full")
    assert sum(p.numel() for p in model.parameters()) == PUBLIC[name]
    assert type(model).__name__ == describe(name)["config"]["architectures"][0]


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_slice_has_the_full_width_and_fewer_layers(name: str) -> None:
    full, part = _on_shapes_alone(f"{name}@full"), _on_shapes_alone(f"{name}@slice")
    shapes = {p.shape for p in full.parameters()}
    assert {p.shape for p in part.parameters()} <= shapes
    assert sum(p.numel() for p in part.parameters()) < sum(p.numel() for p in full.parameters())


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_tiny_model_runs_on_its_example_inputs(name: str) -> None:
    workload = load(f"{name}@tiny", LoadOptions(dtype="fp32", batch=1))
    assert not workload.model.training
    assert workload.spec == f"{name}@tiny"
    with torch.no_grad():
        output = run_call(workload.model, workload.calls[0])
    assert all(bool(v.isfinite().all()) for v in output.values() if isinstance(v, torch.Tensor))


def test_an_unknown_zoo_name_gets_the_nearest_one() -> None:
    with pytest.raises(SpecError, match=r"gtp2@tiny: no zoo model is called 'gtp2'; did you mean 'gpt2'\?"):
        load("gtp2@tiny")


def test_an_unknown_size_is_told_the_sizes() -> None:
    with pytest.raises(SpecError, match="expected a size full, slice or tiny after @, got 'huge'"):
        load("gpt2@huge")


def test_a_model_larger_than_memory_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_free_bytes", lambda device: 1 << 20)
    with pytest.raises(ResourceExhausted, match=r"gpt2@slice: the weights take 0\.[12] GiB, 0\.0 GiB is free on cpu"):
        load("gpt2@slice")
