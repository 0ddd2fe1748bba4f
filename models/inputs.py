"""Make example inputs for a model that describes itself: text, vision, audio and encoder-decoders.

What a model takes is read from its `main_input_name`, its forward's signature and its config's fields; no architecture
is known by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from .config_fields import field
from .errors import InputError
from .input_choice import accepted, alternatives, runs_with
from .input_tensors import MEL_FIELDS, ROWS_OF_PATCHES, Sizes, Tensors, parameters_of
from .placeholders import placed
from .workload import Call


def example_calls(model: Any, *, batch: int | None, seq_lens: Sequence[int], seed: int) -> tuple[Call, ...]:
    """Return one Call for each of `seq_lens`, one of the usual length if there are none; equal for equal seeds."""
    lengths: tuple[int | None, ...] = tuple(seq_lens) or (None,)
    calls = []
    for length in lengths:
        generator = torch.Generator().manual_seed(seed)
        kwargs = _Maker(model, Sizes(batch, length), generator).kwargs()
        calls.append(Call(kwargs=kwargs, name=f"seq{length}" if length else "example"))
    return tuple(calls)


def check_fit(model: nn.Module, calls: Iterable[Call], source: str) -> None:
    """Raise InputError, naming the forward's parameters, for a call that `model.forward` cannot be called with."""
    signature = parameters_of(model)
    for call in calls:
        try:
            signature.bind(*call.args, **call.kwargs)
        except TypeError as error:
            raise InputError(
                f"{source}: {call.name} does not fit {type(model).__name__}.forward{shown(signature)}: {error}; "
                "give --inputs file.py:fn returning a dict of keyword arguments or a tuple"
            ) from error


def shown(signature: inspect.Signature) -> str:
    """Return the signature's parameter names, those with defaults marked `=`."""
    return "(" + ", ".join(_shown_parameter(p) for p in signature.parameters.values()) + ")"


def _shown_parameter(parameter: inspect.Parameter) -> str:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    return parameter.name + ("" if parameter.default is inspect.Parameter.empty else "=")


class _Maker:
    """Makes the keyword arguments of one call."""

    def __init__(self, model: Any, sizes: Sizes, generator: torch.Generator) -> None:
        self.model = model
        self.tensors = tensors = Tensors(model, sizes, generator)
        self.signature = tensors.signature
        self.main = tensors.main
        self.makers: dict[str, Callable[[], Any]] = {
            "input_ids": tensors.input_ids,
            "pixel_values": tensors.pixel_values,
            "input_features": self.spectrogram,
            "input_values": self.audio,
            "decoder_input_ids": tensors.decoder_input_ids,
            "bbox": tensors.boxes,
            "past_values": tensors.past_values,
            "flattened_patches": tensors.flattened_patches,
        }
        # Tried beside the others where the signature lets them out and the forward does not.
        self.optional_makers: dict[str, Callable[[], Any]] = {
            "input_features_mask": self.feature_mask,
            "encoder_hidden_states": tensors.encoder_hidden_states,
        }
        # Only the main input, or where there is no default: nearly every model could take embeddings instead of ids.
        self.required_makers: dict[str, Callable[[], Any]] = {
            "hidden_states": tensors.hidden_states,
            "query_embeds": tensors.embeddings,
            "inputs_embeds": tensors.embeddings,
            "grid_thw": tensors.grid,
            "image_grid_thw": tensors.grid,
            "merge_sizes": tensors.merge_sizes,
            "pixel_position_ids": tensors.patch_positions,
            "pixel_attention_mask": tensors.patch_mask,
            "spatial_shapes": tensors.patch_shapes,
            "pixel_values_videos": tensors.videos,
            "past_time_features": tensors.past_features,
            "past_observed_mask": lambda: torch.ones_like(tensors.past_values()),
        }
        self.every_maker = self.makers | self.optional_makers | self.required_makers

    def kwargs(self) -> dict[str, Any]:
        """Return the inputs the description asks for or, where the signature allows others, what the forward takes."""
        wanted = self.wanted()
        possible = [name for name in self.makers if name in self.signature.parameters]
        if possible == list(wanted) == ["input_ids"]:
            return self.made(wanted)  # what a text alone can be
        if {"input_ids", "pixel_values"} <= set(wanted):
            # Where the text has a place for each feature of an image, only its values tell, which shapes do not have.
            for made in self.variants(wanted):
                if made["input_ids"].shape[1] > self.tensors.text_length() and runs_with(self.model, made) is not False:
                    return made
        return dict(accepted(self.model, self.options(wanted, possible)))

    def beside(self) -> list[str]:
        """Return the optional arguments that a forward may need: texts are read without any."""
        names = [] if "input_ids" in self.signature.parameters else list(self.optional_makers)
        return [name for name in names if name in self.signature.parameters]

    def options(self, wanted: Sequence[str], possible: Sequence[str]) -> Iterator[dict[str, Any]]:
        refused: InputError | None = None
        none = True
        for names in alternatives(wanted, possible, self.beside()):
            try:
                variants = list(self.variants(names))
            except InputError as error:  # the config lacks a size; another set may need none
                refused = refused or error
                continue
            none = False
            yield from variants
        if none and refused is not None:
            raise refused

    def variants(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the arguments `names` in the forms a forward may take them in."""
        made = self.made(names)
        yield placed(self.model, made)
        if "pixel_values" in made and self.tensors.in_patches():
            yield placed(self.model, {**made, "pixel_values": self.tensors.square(made["pixel_values"])})
        if "input_values" in made and made["input_values"].ndim == 2:
            yield {**made, "input_values": made["input_values"].unsqueeze(1)}  # a waveform of one channel
        if "input_values" in made and made["input_values"].ndim == 3 and "input_features" not in made:
            yield {**made, "input_values": self.tensors.waveform()}  # its bins are those of what it makes
        if "input_features" in made and made["input_features"].ndim == 3:
            yield placed(self.model, {**made, "input_features": made["input_features"].unsqueeze(1)})  # of one channel
            if "input_features_mask" in made:
                yield self.bins_first(made)
        if "pixel_values" in made and "input_ids" not in made and made["pixel_values"].ndim == 4:
            pairs = torch.stack([made["pixel_values"], made["pixel_values"].flip(-1)], 1)
            yield {**made, "pixel_values": pairs}  # images to be matched with each other
        if {"input_ids", "pixel_values"} <= made.keys() and made["pixel_values"].ndim == 4:
            yield placed(self.model, {**made, "pixel_values": made["pixel_values"].unsqueeze(1)})  # images of each text

    def bins_first(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with the spectrogram's dims the other way round, and a mask as long as it."""
        _, features = self.tensors.spectrograms()
        features = made["input_features"].transpose(1, 2).contiguous() if features is None else features
        mask = torch.ones(len(features), features.shape[-1], dtype=torch.long, device=features.device)
        return {**made, "input_features": features, "input_features_mask": mask}

    def made(self, names: Sequence[str]) -> dict[str, Any]:
        made = {name: self.maker(name)() for name in names}
        parameters = self.signature.parameters
        if "input_ids" in made and "pixel_values" in made and self.tensors.in_patches():
            made["image_grid_thw"] = self.tensors.grid()
            if "image_merge_sizes" in parameters:
                made["image_merge_sizes"] = self.tensors.merge_sizes()
        if "pixel_values" in made and self.tensors.in_rows():
            made |= {name: self.maker(name)() for name in ROWS_OF_PATCHES if name in parameters}
        if "flattened_patches" in made and "attention_mask" in parameters:
            made["attention_mask"] = self.tensors.patch_mask()
        if "input_ids" in made and "attention_mask" in self.signature.parameters:
            made["attention_mask"] = torch.ones_like(made["input_ids"])
        if self.takes("use_cache") and (self.tensors.seq2seq or self.tensors.causal):
            # One forward over whole sequences: the cache it would fill is thrown away.
            made["use_cache"] = False
        return made

    def takes(self, name: str) -> bool:
        """Tell whether the forward takes `name`, be it among the **kwargs it hands on."""
        parameters = self.signature.parameters
        return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())

    def wanted(self) -> list[str]:
        """Return the names of inputs to make: the main one, the decoder's, required ones, and those of two towers."""
        parameters = self.signature.parameters
        names = list(self.tensors.mains)
        if self.tensors.seq2seq and "decoder_input_ids" in parameters:
            names.append("decoder_input_ids")
        towers = {"text_config", "vision_config"} <= set(getattr(self.model.config, "sub_configs", {}))
        if towers and not self.model.can_generate():
            names += [name for name in ("input_ids", "pixel_values") if name in parameters]
        required = self.required()
        if names[0] not in required and required and names[0] not in parameters:
            names = []  # a part of a larger model that names the whole one's main input
        names = list(dict.fromkeys([*names, *required]))
        for name in names:
            self.maker(name)
        return names

    def maker(self, name: str) -> Callable[[], Any]:
        """Return what makes the argument `name`; raise InputError where nothing does."""
        if name in self.every_maker:
            return self.every_maker[name]
        if name.endswith("_input_ids"):
            return partial(self.tensors.other_ids, name)
        beside = name.removesuffix("attention_mask") + "input_ids"
        if name.endswith("_attention_mask") and beside in self.signature.parameters:
            return lambda: torch.ones_like(self.maker(beside)())
        if name.endswith(("_embeds", "_hidden_states")):
            return self.tensors.embeddings
        raise InputError(
            f"{type(self.model).__name__}.forward{shown(self.signature)}: no example can be made for {name!r}; "
            "give --inputs file.py:fn returning a dict of keyword arguments"
        )

    def required(self) -> list[str]:
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        parameters = self.signature.parameters.values()
        return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in variadic]

    def spectrogram(self) -> torch.Tensor:
        """Return features in the order of dims that the forward runs with, beside the other inputs it wants."""
        frames_first, bins_first = self.tensors.spectrograms()
        if bins_first is None:
            return frames_first
        others = {name: self.makers[name]() for name in self.wanted() if name in self.makers and name != self.main}
        return bins_first if runs_with(self.model, {self.main: bins_first, **others}) else frames_first

    def audio(self) -> torch.Tensor:
        """Return a spectrogram where the config counts mel bins, else a waveform."""
        counts = field(self.model.config, MEL_FIELDS) is not None and "input_features" not in self.signature.parameters
        return self.spectrogram() if counts else self.tensors.waveform()

    def feature_mask(self) -> torch.Tensor:
        """Return a mask of ones over the frames of the spectrogram."""
        features = self.spectrogram()
        bins = field(self.model.config, MEL_FIELDS)
        frames = features.shape[1] if features.shape[-1] == bins else features.shape[-1]
        return torch.ones(len(features), frames, dtype=torch.long, device=features.device)
