"""One decode step behind a static cache, made so that it can be called again and again: it ends where it began."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from hotswap.models.workload import Call

# Tokens that fit behind those cached: as many as there are, and what a reply may have.
_ROOM = 128


def with_cache(model: Any, prompt: torch.Tensor) -> dict[str, Any]:
    """Return the arguments of the model's step after `prompt` (rows, length), its keys and values in a static cache."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=prompt.shape[1] + _ROOM)
    # Newer versions of transformers take it by another name.
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.no_grad():
        last = model(input_ids=prompt, use_cache=True, logits_to_keep=1, **{name: cache})
    return {"input_ids": last.logits[:, -1:].argmax(-1), name: cache, "use_cache": True}


def stepping(call: Call, run: Callable[[], Any]) -> Callable[[], Any]:
    """Return `run`, made to leave the caches among the call's arguments as they are now.

    That is one op over all layers behind the step, outside of what is compiled or captured: the same for every arm. Of
    layers that hold a window, which a step moves, keys and values are put back, too.
    """
    layers = list(_layers(call.kwargs))
    if not layers:
        return run
    kept = [layer.cumulative_length for layer in layers]
    kept += [t for layer in layers if layer.is_sliding for t in (layer.keys, layer.values)]
    before = [tensor.clone() for tensor in kept]
    counts = [(layer, layer.cumulative_length_int) for layer in layers if layer.is_sliding]

    def step() -> Any:
        try:
            return run()
        finally:
            torch._foreach_copy_(kept, before)
            for layer, count in counts:
                layer.cumulative_length_int = count

    return step


def cached_bytes(call: Call) -> int:
    """Return the bytes of keys and values that a step reads: those of the tokens in the cache."""
    read = 0
    for layer in _layers(call.kwargs):
        room = layer.keys.shape[-2]
        held = min(int(layer.get_seq_length()), room)
        read += sum(t.numel() * t.element_size() * held // room for t in (layer.keys, layer.values))
    return read


def in_fp32(call: Call) -> Call:
    """Return the call with its float tensors, those of caches too, in fp32; copies, but for what has another dtype."""
    return Call(call.args, {name: _wide(value) for name, value in call.kwargs.items()}, call.weight, call.name)


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.is_floating_point() else value
    twin = copy.deepcopy(value)
    for layer in _layers({"": twin}):
        layer.keys, layer.values = layer.keys.float(), layer.values.float()
    return twin


def _layers(kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the layers of static caches: those that keep their length in a tensor."""
    for value in kwargs.values():
        for layer in getattr(value, "layers", ()):
            if isinstance(getattr(layer, "cumulative_length", None), torch.Tensor):
                yield layer
