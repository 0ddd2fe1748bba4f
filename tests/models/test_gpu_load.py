"""On a GPU a model is built there, in bf16, and its inputs lie beside it."""

from __future__ import annotations

import pytest
import torch

from hotswap.models.spec import LoadOptions, load
from hotswap.models.trial import run_call

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["llama-3.2-1b", "bert-base", "vit-l16", "whisper-small"])
def test_a_model_is_built_on_the_gpu_with_its_inputs(name: str) -> None:
    stream = torch.cuda.get_rng_state()
    workload = load(f"{name}@tiny")
    assert torch.equal(torch.cuda.get_rng_state(), stream)
    parameter = next(workload.model.parameters())
    assert (parameter.device.type, parameter.dtype) == ("cuda", torch.bfloat16)
    with torch.no_grad():
        output = run_call(workload.model, workload.calls[0])
    assert all(v.device.type == "cuda" for v in output.values() if isinstance(v, torch.Tensor))


def test_equal_seeds_build_equal_models_on_the_gpu() -> None:
    first, second = (load("gpt2@tiny", LoadOptions(seed=4)).model.state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
