"""The workloads of the suite: real dimensions, random weights, bf16; each with the sizes it can be asked in."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_map_only

from hotswap.models.fast_init import FastInit
from hotswap.models.hub import from_config_alone
from hotswap.models.inputs import example_calls
from hotswap.models.seeded import seeded
from hotswap.models.workload import Call
from hotswap.models.zoo.catalog import config, names

from .cached import with_cache
from .diffusion import DiffusionTransformer, example_inputs

Size = Literal["full", "slice", "tiny"]

CONFIGS = Path(__file__).parent / "configs.json"

# What a tiny size is called with: on a CPU, in seconds.
_TINY_BATCH, _TINY_LENGTH, _TINY_IMAGE, _TINY_TEXT = 2, 32, 64, 8


@dataclass(frozen=True)
class Row:
    """One workload. length: tokens or frames, None for what has one size (images). padded: rows of the batch end early.

    causal: half of attention's products are not needed, which the floor leaves out. decode: one step of one token a
    row, behind `length` tokens in a static cache. sliced: it is measured at full width with few layers, and of the
    prompt's logits the last alone are made, as `generate` asks for them: all of them would outweigh the few layers.
    text: tokens of text beside those of an image, for a diffusion transformer.
    """

    model: str
    batch: int
    length: int | None
    causal: bool = False
    padded: bool = False
    decode: bool = False
    sliced: bool = False
    text: int = 0

    def workload(self, size: Size) -> str:
        """Return the model's name with the size it is measured in where `size` is asked for."""
        return f"{self.model}@{self.own(size)}"

    def own(self, size: Size) -> Size:
        return "slice" if self.sliced and size == "full" else size

    def shape(self, size: Size) -> str:
        batch, length = self.sizes(size)
        if self.decode:
            return f"decode {batch}, {length} cached"
        if self.text:
            return f"{batch}x{length}+{self.text if size != 'tiny' else _TINY_TEXT}"
        return f"{batch}x{length}{' padded' if self.padded else ''}" if length else f"{batch}"

    def sizes(self, size: Size) -> tuple[int, int | None]:
        if size == "tiny":
            length = _TINY_IMAGE if self.text else _TINY_LENGTH
            return self.batch if self.decode else _TINY_BATCH, length if self.length else None
        return self.batch, self.length


ROWS: tuple[Row, ...] = (
    Row("llama-3.2-1b", 1, 2048, causal=True),
    Row("llama-3.2-1b", 8, 512, causal=True),
    Row("llama-3.2-1b", 1, 2048, decode=True),
    Row("llama-3.2-1b", 16, 2048, decode=True),
    Row("llama-3.1-8b", 1, 2048, causal=True),
    Row("llama-3.1-8b", 8, 512, causal=True),
    Row("llama-3.1-8b", 1, 2048, decode=True),
    Row("llama-3.1-8b", 16, 2048, decode=True),
    Row("qwen3-0.6b", 1, 2048, causal=True),
    Row("qwen3-0.6b", 1, 2048, decode=True),
    Row("qwen3-0.6b", 16, 2048, decode=True),
    Row("qwen3-0.6b", 64, 2048, decode=True),
    Row("qwen3-8b", 1, 2048, causal=True),
    Row("qwen3-8b", 1, 2048, decode=True),
    Row("qwen3-8b", 16, 2048, decode=True),
    Row("qwen3-8b", 64, 2048, decode=True),
    Row("gpt-oss-20b", 1, 2048, causal=True, sliced=True),
    Row("gpt-oss-20b", 8, 2048, decode=True, sliced=True),
    Row("qwen3-30b-a3b", 1, 2048, causal=True, sliced=True),
    Row("qwen3-30b-a3b", 8, 2048, decode=True, sliced=True),
    Row("qwen3.5-9b", 1, 4096, causal=True, sliced=True),
    Row("gemma-3-4b", 1, 4096, causal=True, sliced=True),
    Row("gpt2", 8, 1024, causal=True),
    Row("bert-base", 8, 512),
    Row("bert-base", 32, 128, padded=True),
    Row("modernbert-large", 8, 512),
    Row("modernbert-large", 32, 128, padded=True),
    Row("bge-m3", 8, 512),
    Row("bge-m3", 32, 128, padded=True),
    Row("vit-l16", 32, None),
    Row("siglip-so400m", 32, None),
    Row("whisper-large-v3-turbo-encoder", 8, None),
    Row("flux.1-dev", 1, 4096, text=512),
)


def build(row: Row, size: Size, device: str) -> tuple[Any, Call]:
    """Return the model with random weights and its call, both on the device, in bf16."""
    if row.text:
        return _diffusion(row, size, device)
    model = from_config_alone(
        fields(row.model, row.own(size)), name=row.workload(size), dtype=torch.bfloat16, device=device, seed=0
    )
    if row.model.endswith("-encoder"):
        model = model.get_encoder()
    batch, length = row.sizes(size)
    (call,) = example_calls(model, batch=batch, seq_lens=(length,) if length else (), seed=0)
    given = {k: v for k, v in call.kwargs.items() if k not in ("attention_mask", "labels", "token_type_ids")}
    if row.padded:
        given["attention_mask"] = _ends_early(given["input_ids"])
    placed = tree_map_only(torch.Tensor, lambda t: _on(t, device), given)
    if row.sliced and not row.decode:
        placed["logits_to_keep"] = 1
    if row.decode:
        placed = with_cache(model, placed["input_ids"])
    return model, Call(kwargs=placed, name=row.shape(size))


def _diffusion(row: Row, size: Size, device: str) -> tuple[Any, Call]:
    with seeded(0, device), torch.device(device), FastInit(), _default_dtype(torch.bfloat16):
        model = DiffusionTransformer(**fields(row.model, size)).eval()
    batch, length = row.sizes(size)
    text = row.text if size != "tiny" else _TINY_TEXT
    given = example_inputs(model, batch, math.isqrt(length or 0), text, seed=0)
    return model, Call(kwargs={k: _on(v, device) for k, v in given.items()}, name=row.shape(size))


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def fields(model: str, size: Size) -> dict[str, Any]:
    """Return the config's fields: the zoo's, or of `configs.json`, which has the same form."""
    if model in names():
        return config(f"{model}@{size}")
    entry = json.loads(CONFIGS.read_text(encoding="utf-8"))[model]
    return {**entry["config"], **(entry[size] if size != "full" else {})}


def _on(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return tensor.to(device, torch.bfloat16 if tensor.is_floating_point() else tensor.dtype)


def _ends_early(ids: torch.Tensor) -> torch.Tensor:
    """Return a mask in which the first row is whole and the last keeps a quarter."""
    rows, length = ids.shape
    keeps = torch.linspace(length, length / 4, rows).round().long()
    return (torch.arange(length)[None] < keeps[:, None]).long()
