"""Directories, configs and cached hub ids load through transformers, without the network; what cannot load says why."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from hotswap.models import hub
from hotswap.models.errors import EnvironmentMissing, HotswapError, SpecError
from hotswap.models.spec import LoadOptions, load
from hotswap.models.trial import run_call
from hotswap.models.zoo.catalog import config

FP32 = LoadOptions(dtype="fp32")
REMOTE_CONFIG = """\
from transformers import PretrainedConfig
class OwnConfig(PretrainedConfig):
    model_type = "a-model-of-my-own"
    width = 4
    vocab_size = 16
"""
REMOTE_MODEL = """\
import torch
from transformers import PreTrainedModel
from .own_config import OwnConfig
class OwnModel(PreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(config.vocab_size, config.width)
        self.post_init()
    def forward(self, input_ids):
        return {"hidden": self.embed(input_ids)}
"""


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError(f"the network was asked for {args}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A small trained model as a local directory."""
    model = hub.from_config_alone(config("bert-base@tiny"), name="tiny", dtype=torch.float32, device="cpu", seed=3)
    model.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_a_local_directory_loads_its_own_weights(checkpoint: Path) -> None:
    from safetensors.torch import load_file

    workload = load(str(checkpoint), FP32)
    stored = load_file(checkpoint / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    assert type(workload.model).__name__ == "BertModel"
    assert torch.equal(workload.model.state_dict()[name], stored[name])


def test_the_trained_headline_model_gives_useful_sentence_embeddings(minilm: Path) -> None:
    workload = load(str(minilm), FP32)
    assert workload.calls[0].kwargs["input_ids"].shape == (8, 128)
    with torch.no_grad():
        hidden = run_call(workload.model, workload.calls[0]).last_hidden_state
    assert hidden.shape == (8, 128, 384)
    table = workload.model.state_dict()["embeddings.word_embeddings.weight"]
    # Trained tables are not the initialiser's: rows' norms spread far beyond a normal draw's.
    assert float(table.norm(dim=1).std()) > 0.05


def test_random_weights_need_only_the_config(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    options = LoadOptions(dtype="fp32", random_weights=True)
    for spec in (checkpoint, checkpoint / "config.json"):
        workload = load(str(spec), options)
        assert type(workload.model).__name__ == "BertModel"
    elsewhere = checkpoint.parent / "other-name.json"
    shutil.copy(checkpoint / "config.json", elsewhere)
    assert type(load(str(elsewhere), options).model).__name__ == "BertModel"


def _cached(checkpoint: Path, cache: Path) -> None:
    snapshot = cache / "models--someone--something" / "snapshots" / ("a" * 40)
    shutil.copytree(checkpoint, snapshot)
    refs = cache / "models--someone--something" / "refs"
    refs.mkdir()
    (refs / "main").write_text("a" * 40)


def test_a_hub_id_loads_from_the_cache_offline(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cached(checkpoint, tmp_path / "hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert type(load("someone/something", FP32).model).__name__ == "BertModel"
    assert type(load("someone/something", LoadOptions(random_weights=True)).model).__name__ == "BertModel"


def test_a_hub_id_neither_cached_nor_reachable_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(EnvironmentMissing) as caught:
        load("someone/something")
    assert str(caught.value).startswith(
        "someone/something: no such directory, not in the hub cache, and the hub cannot be"
    )
    assert "\n" not in str(caught.value)


def test_a_zoo_name_without_a_size_is_told_the_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        EnvironmentMissing, match=r"the zoo has llama-3.2-1b@full, llama-3.2-1b@slice and llama-3.2-1b@tiny"
    ):
        load("llama-3.2-1b")


def _broken(checkpoint: Path, kind: str) -> None:
    fields = json.loads((checkpoint / "config.json").read_text())
    if kind == "no config":
        (checkpoint / "config.json").unlink()
    elif kind == "no weights":
        (checkpoint / "model.safetensors").unlink()
    elif kind == "truncated weights":
        path = checkpoint / "model.safetensors"
        path.write_bytes(path.read_bytes()[:5000])
    elif kind == "unknown type":
        (checkpoint / "config.json").write_text(json.dumps({**fields, "model_type": "brt"}))
    elif kind == "not JSON":
        (checkpoint / "config.json").write_text("{")
    elif kind == "other shapes":
        (checkpoint / "config.json").write_text(json.dumps({**fields, "intermediate_size": 100}))


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        ("no config", SpecError, "no config.json in"),
        ("no weights", SpecError, "no weights there; expected one of *.safetensors, pytorch_model*.bin"),
        ("truncated weights", SpecError, "cannot be loaded: "),
        ("unknown type", EnvironmentMissing, "does not know model_type 'brt'"),
        ("not JSON", SpecError, "cannot be loaded: "),
        ("other shapes", SpecError, "intermediate.dense.bias is [512] in the checkpoint, [100] in the config"),
    ],
)
def test_a_broken_directory_gets_one_line(checkpoint: Path, kind: str, error: type[HotswapError], said: str) -> None:
    _broken(checkpoint, kind)
    with pytest.raises(error) as caught:
        load(str(checkpoint))
    assert type(caught.value) is error
    assert str(checkpoint) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_that_are_missing_are_said_aloud(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    from safetensors.torch import load_file, save_file

    path = checkpoint / "model.safetensors"
    weights = load_file(path)
    del weights["pooler.dense.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    load(str(checkpoint), FP32)
    assert "1 weights are not in the checkpoint and are random, the first is pooler.dense.weight" in caplog.text


def test_a_config_without_weights_asks_for_random_ones(checkpoint: Path) -> None:
    with pytest.raises(SpecError, match="a config has no weights; give --random-weights"):
        load(str(checkpoint / "config.json"))


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose model is code of its own."""
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / "own_config.py").write_text(REMOTE_CONFIG)
    (folder / "own_model.py").write_text(REMOTE_MODEL)
    fields = {
        "model_type": "a-model-of-my-own",
        "architectures": ["OwnModel"],
        "auto_map": {"AutoConfig": "own_config.OwnConfig", "AutoModel": "own_model.OwnModel"},
    }
    (folder / "config.json").write_text(json.dumps(fields))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    return folder


def test_code_of_the_models_own_is_refused_without_trust(remote: Path) -> None:
    with pytest.raises(
        SpecError, match=r"needs code of its own \(own_config.py, own_model.py\); .* --trust-remote-code"
    ):
        load(str(remote), LoadOptions(random_weights=True))


def test_code_of_the_models_own_runs_when_trusted(remote: Path) -> None:
    workload = load(str(remote), LoadOptions(random_weights=True, trust_remote_code=True, dtype="fp32"))
    assert set(workload.calls[0].kwargs) == {"input_ids"}
    assert run_call(workload.model, workload.calls[0])["hidden"].shape == (8, 128, 4)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model_type": "bert"}, "AutoModel"),
        ({"model_type": "llama"}, "AutoModelForCausalLM"),
        ({"model_type": "t5"}, "AutoModelForSeq2SeqLM"),
        ({"model_type": "whisper"}, "AutoModelForSpeechSeq2Seq"),
        ({"model_type": "vit"}, "AutoModel"),
        ({"model_type": "llama", "architectures": ["LlamaModel"]}, "AutoModel"),
        (
            {"model_type": "bert", "architectures": ["BertForSequenceClassification"]},
            "AutoModelForSequenceClassification",
        ),
    ],
)
def test_the_config_decides_the_class(fields: dict[str, Any], expected: str) -> None:
    built = hub._config_from_fields(fields, "test")
    assert hub._door(built, trust_remote_code=False).__name__ == expected
