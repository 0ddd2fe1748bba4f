"""Make example inputs for a model that describes itself: text, vision, audio and encoder-decoders.

What a model takes is read from its `main_input_name`, its forward's signature and its config's fields; no architecture
is known by name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .errors import InputError
from .input_choice import accepted, alternatives, runs_with
from .workload import Call

ENCODER_SHAPE = (8, 128)
CAUSAL_SHAPE = (1, 512)
IMAGES = 8
AUDIO_BATCH = 1
DECODER_LENGTH = 64
FRAMES = 1024
SAMPLES = 80_000  # 5 s at 16 kHz
IMAGE_SIDE = 224

MEL_FIELDS = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")


@dataclass(frozen=True)
class Sizes:
    """What one call is made for. length: tokens, frames or samples, what the model counts; None for the usual one."""

    batch: int | None
    length: int | None


def example_calls(model: Any, *, batch: int | None, seq_lens: Sequence[int], seed: int) -> tuple[Call, ...]:
    """Return one Call for each of `seq_lens`, one of the usual length if there are none; equal for equal seeds."""
    lengths: tuple[int | None, ...] = tuple(seq_lens) or (None,)
    calls = []
    for length in lengths:
        generator = torch.Generator().manual_seed(seed)
        kwargs = _Maker(model, Sizes(batch, length), generator).kwargs()
        calls.append(Call(kwargs=kwargs, name=f"seq{length}" if length else "example"))
    return tuple(calls)


def parameters_of(model: nn.Module) -> inspect.Signature:
    return inspect.signature(model.forward)


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
        self.config = model.config
        self.sizes = sizes
        self.generator = generator
        self.signature = parameters_of(model)
        first = next(model.parameters(), torch.empty(0))
        self.device, self.dtype = first.device, first.dtype
        self.seq2seq = bool(getattr(self.config, "is_encoder_decoder", False))
        # Types that can be either say which they are; decoders that can be nothing else lack the field.
        encoder = getattr(self.config, "is_decoder", None) is False
        cached = "use_cache" in self.signature.parameters and not encoder
        self.causal = not self.seq2seq and (model.can_generate() or cached)
        self.main: str = model.main_input_name
        self.makers: dict[str, Callable[[], Any]] = {
            "input_ids": self.input_ids,
            "pixel_values": self.pixel_values,
            "input_features": self.spectrogram,
            "input_values": self.audio,
            "decoder_input_ids": self.decoder_input_ids,
            "bbox": self.boxes,
            "past_values": self.past_values,
        }
        # Only where the signature has no default for them: nearly every model could take embeddings instead of ids.
        self.required_makers: dict[str, Callable[[], Any]] = {
            "hidden_states": self.hidden_states,
            "query_embeds": self.embeddings,
            "inputs_embeds": self.embeddings,
            "encoder_hidden_states": self.embeddings,
            "grid_thw": self.grid,
        }

    def kwargs(self) -> dict[str, Any]:
        """Return the inputs the description asks for or, where the signature allows others, what the forward takes."""
        wanted = self.wanted()
        possible = [name for name in self.makers if name in self.signature.parameters]
        if set(possible) == set(wanted) and len(wanted) == 1 and self.main != "input_values":
            return self.made(wanted)
        return dict(accepted(self.model, self.options(wanted, possible)))

    def options(self, wanted: Sequence[str], possible: Sequence[str]) -> Iterator[dict[str, Any]]:
        refused: InputError | None = None
        none = True
        for names in alternatives(wanted, possible):
            try:
                made = self.made(names)
            except InputError as error:  # the config lacks a size; another set may need none
                refused = refused or error
                continue
            none = False
            yield made
            if "input_values" in made and made["input_values"].ndim == 2:
                yield {**made, "input_values": made["input_values"].unsqueeze(1)}  # a waveform of one channel
        if none and refused is not None:
            raise refused

    def made(self, names: Sequence[str]) -> dict[str, Any]:
        made = {name: (self.makers | self.required_makers)[name]() for name in names}
        if "input_ids" in made and "attention_mask" in self.signature.parameters:
            made["attention_mask"] = torch.ones_like(made["input_ids"])
        if self.takes("use_cache") and (self.seq2seq or self.causal):
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
        names = [self.main]
        if self.seq2seq and "decoder_input_ids" in parameters:
            names.append("decoder_input_ids")
        towers = {"text_config", "vision_config"} <= set(getattr(self.config, "sub_configs", {}))
        if towers and not self.model.can_generate():
            names += [name for name in ("input_ids", "pixel_values") if name in parameters]
        required = self.required()
        if names[0] not in required and required and names[0] not in parameters:
            names = []  # a part of a larger model that names the whole one's main input
        names = list(dict.fromkeys([*names, *required]))
        for name in names:
            if name not in self.makers and name not in self.required_makers:
                raise InputError(
                    f"{type(self.model).__name__}.forward{shown(self.signature)}: no example can be made for {name!r}; "
                    "give --inputs file.py:fn returning a dict of keyword arguments"
                )
        return names

    def required(self) -> list[str]:
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        parameters = self.signature.parameters.values()
        return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in variadic]

    def hidden_states(self) -> torch.Tensor:
        """Return what goes into a part of a model: the patches of a grid where it takes one, else embeddings."""
        if "grid_thw" not in self.signature.parameters:
            return self.embeddings()
        side = _field(self.config, ("patch_size",))
        if not isinstance(side, int):
            raise InputError(f"{type(self.model).__name__}: its config has no patch_size; give --inputs file.py:fn")
        channels = _field(self.config, ("in_channels", "num_channels", "in_chans")) or 3
        frames = _field(self.config, ("temporal_patch_size",)) or 1
        return self.normal((int(self.grid().prod()), channels * frames * side * side))

    def grid(self) -> torch.Tensor:
        """Return the grid of one image: frames, rows and columns of patches, in whole merged ones."""
        side = 4 * int(_field(self.config, ("spatial_merge_size",)) or 2)
        return torch.tensor([[1, side, side]], device=self.device)

    def embeddings(self) -> torch.Tensor:
        """Return a sequence of vectors as wide as the model's own."""
        width = _field(self.config, ("hidden_size", "d_model", "embed_dim"))
        if not isinstance(width, int):
            raise InputError(f"{type(self.model).__name__}: its config has no hidden_size; give --inputs file.py:fn")
        batch, length = ENCODER_SHAPE
        return self.normal((self.sizes.batch or batch, self.sizes.length or length, width))

    def input_ids(self) -> torch.Tensor:
        batch, length = CAUSAL_SHAPE if self.causal else ENCODER_SHAPE
        limit = _position_limit(self.model, self.config)
        if self.sizes.length and limit and self.sizes.length > limit:
            raise InputError(
                f"--seq-len {self.sizes.length}: {type(self.model).__name__} has a table of {limit} positions; "
                f"give at most {limit}"
            )
        ids = self.tokens(self.sizes.batch or batch, self.sizes.length or min(length, limit or length))
        end = _field(self.config, ("eos_token_id",))
        if self.seq2seq and isinstance(end, int):
            ids[:, -1] = end  # encoders' inputs end so, and classification heads look for it
        return ids

    def decoder_input_ids(self) -> torch.Tensor:
        text = self.main == "input_ids"
        batch = self.sizes.batch or (
            ENCODER_SHAPE[0] if text else IMAGES if self.main == "pixel_values" else AUDIO_BATCH
        )
        usual = ENCODER_SHAPE[1] if text else DECODER_LENGTH
        ids = self.tokens(batch, self.sizes.length or usual)
        start = _field(self.config, ("decoder_start_token_id",))
        if isinstance(start, int):
            ids[:, 0] = start
        return ids

    def tokens(self, batch: int, length: int) -> torch.Tensor:
        """Return ids drawn from the vocabulary without its special tokens, whose places in a text are not random."""
        size = _field(self.config, ("vocab_size",))
        if not isinstance(size, int):
            raise InputError(f"{type(self.model).__name__}: its config has no vocab_size; give --inputs file.py:fn")
        ordinary = torch.ones(size, dtype=torch.bool)
        special = [i for i in _special_tokens(self.config) if 0 <= i < size]
        ordinary[special] = False
        choice = ordinary.nonzero().flatten() if bool(ordinary.any()) else torch.arange(size)
        drawn = torch.randint(len(choice), (batch, length), generator=self.generator)
        return choice[drawn].to(self.device)

    def pixel_values(self) -> torch.Tensor:
        channels = _field(self.config, ("num_channels", "in_channels", "in_chans")) or 3
        frames = _field(self.config, ("num_frames",))
        batch = self.sizes.batch or (IMAGES if frames is None else 1)
        shape = (batch, channels, *_height_width(_field(self.config, ("image_size",))))
        return self.normal(shape if frames is None else (batch, frames, *shape[1:]))

    def audio(self) -> torch.Tensor:
        """Return a spectrogram where the config counts mel bins, else a waveform, with channels where it counts any."""
        if _field(self.config, MEL_FIELDS) is not None:
            return self.spectrogram()
        channels = _field(self.config, ("audio_channels",))
        samples = self.sizes.length or SAMPLES
        batch = self.sizes.batch or AUDIO_BATCH
        return self.normal((batch, samples) if channels is None else (batch, channels, samples))

    def spectrogram(self) -> torch.Tensor:
        """Return features; where a convolution takes bins as channels, the order the forward runs with is found."""
        bins = _field(self.config, MEL_FIELDS)
        if not isinstance(bins, int):
            raise InputError(f"{type(self.model).__name__}: its config counts no mel bins; give --inputs file.py:fn")
        batch = self.sizes.batch or AUDIO_BATCH
        window = _field(self.config, ("max_length",))
        frames = window if isinstance(window, int) else (None if self.seq2seq else self.sizes.length) or FRAMES
        frames_first = (batch, frames, bins)
        convolutions = _time_convolutions(self.model, bins)
        if not convolutions:
            return self.normal(frames_first)
        positions = _field(self.config, ("max_source_positions",))
        if isinstance(positions, int):
            # A fixed window: as many frames as the strides turn into the encoder's positions.
            frames = positions * math.prod(c.stride[0] for c in convolutions)
        bins_first = self.normal((batch, bins, frames))
        others = {name: self.makers[name]() for name in self.wanted() if name != self.main}
        return bins_first if runs_with(self.model, {self.main: bins_first, **others}) else self.normal(frames_first)

    def boxes(self) -> torch.Tensor:
        """Return a box for each token: left, top, right, bottom, in thousandths of a page."""
        most = _field(self.config, ("max_2d_position_embeddings",)) or 1000
        rows, length = self.input_ids().shape
        corners = torch.randint(most, (rows, length, 2, 2), generator=self.generator).sort(dim=2).values
        return corners.flatten(2).to(self.device)

    def past_values(self) -> torch.Tensor:
        """Return a window of time series, with a dim for channels where the config counts them."""
        window = self.sizes.length or _field(self.config, ("context_length",))
        if not isinstance(window, int):
            raise InputError(f"{type(self.model).__name__}: its config has no context_length; give --inputs file.py:fn")
        channels = _field(self.config, ("num_input_channels",))
        shape = (self.sizes.batch or ENCODER_SHAPE[0], window)
        return self.normal(shape if channels is None else (*shape, channels))

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device, self.dtype)


def _configs(config: Any) -> Iterator[Any]:
    """Yield the config and those inside it, the text one first."""
    yield config
    names = sorted(getattr(config, "sub_configs", {}), key=lambda name: (name != "text_config", name))
    for name in names:
        inner = getattr(config, name, None)
        if inner is not None:
            yield from _configs(inner)


def _field(config: Any, names: Sequence[str]) -> Any:
    """Return the first of the fields `names` that the config, or one inside it, has set; None if none has."""
    for each in _configs(config):
        for name in names:
            value = getattr(each, name, None)
            if value is not None:
                return value
    return None


def _special_tokens(config: Any) -> set[int]:
    found: set[int] = set()
    for each in _configs(config):
        for name, value in each.to_dict().items():
            if name.endswith(("_token_id", "_token_index")):
                found.update(v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int))
    return found


def _position_limit(model: Any, config: Any) -> int | None:
    """Return how many positions a learned table of positions serves, None where the model has no such table."""
    size = _field(config, ("max_position_embeddings",))
    if not isinstance(size, int):
        return None
    words = _field(config, ("vocab_size",))
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


def _time_convolutions(model: nn.Module, bins: int) -> list[nn.Conv1d]:
    """Return the 1-d convolutions beside the first one that takes `bins` channels, it included; [] where none does."""
    for parent in model.modules():
        beside = [child for child in parent.children() if isinstance(child, nn.Conv1d)]
        if beside and beside[0].in_channels == bins:
            return beside
    return []


def _height_width(size: Any) -> tuple[int, int]:
    if size is None:
        return IMAGE_SIDE, IMAGE_SIDE
    if isinstance(size, dict):
        return int(size["height"]), int(size["width"])
    if isinstance(size, list | tuple):
        return int(size[0]), int(size[-1])
    return int(size), int(size)
