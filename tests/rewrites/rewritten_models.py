"""Small models as transformers builds them, and a way to see what the rewrites did to their graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from hotswap.integrator.backend import SwapBackend
from hotswap.integrator.rewrites.parameter_packs import ParameterPacks

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}
GROUPED: dict[str, Any] = SMALL | {"num_key_value_heads": 2, "head_dim": 16}


def small_model(kind: str) -> Any:
    """Return a model of one layer with random weights, in eval mode."""
    import transformers

    made: dict[str, Callable[[], Any]] = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)),
        "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**GROUPED)),
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**SMALL)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=97, n_embd=64, n_layer=1, n_head=4, bos_token_id=1, eos_token_id=2)
        ),
    }
    torch.manual_seed(0)
    return made[kind]().eval()


@dataclass
class Rewritten:
    """A model compiled with rewrites alone. packs: where its parameters are packed."""

    model: Any
    off: frozenset[str] = frozenset()
    packs: ParameterPacks | None = field(default_factory=ParameterPacks)

    def __post_init__(self) -> None:
        self.backend = SwapBackend((), packs=self.packs, off=self.off)
        self._run = torch.compile(self.model, backend=self.backend, dynamic=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)  # type: ignore[no-untyped-call]

    @property
    def applied(self) -> Counter[str]:
        return Counter(one.rewrite for one in self.backend.rewritten)


def graph_of(run: Callable[..., Any], *args: Any) -> tuple[fx.GraphModule, tuple[Any, ...]]:
    """Return the graph Dynamo makes of `run`, and its real inputs."""
    found: list[tuple[fx.GraphModule, tuple[Any, ...]]] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Any:
        found.append((gm, tuple(inputs)))
        return gm.forward

    with torch.no_grad():
        torch.compile(run, backend=backend, dynamic=False)(*args)
    return found[0]
