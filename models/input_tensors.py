"""Make the tensors of one example call, each for the argument it is named after."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .config_fields import field, height_width, position_limit, special_tokens, time_convolutions, vocabulary
from .errors import InputError

ENCODER_SHAPE = (8, 128)
CAUSAL_SHAPE = (1, 512)
IMAGES = 8
AUDIO_BATCH = 1
DECODER_LENGTH = 64
FRAMES = 1024
FRAMES_OF_CLIP = 16
SAMPLES = 76_800  # 4.8 s at 16 kHz: codecs take whole hops, of a power of two or three times one

# What comes beside images that are given as rows of patches.
ROWS_OF_PATCHES = ("pixel_attention_mask", "spatial_shapes", "pixel_position_ids")
ROWS_A_SIDE = 12

MEL_FIELDS = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "input_feat_size")
# Code points of a text in Latin letters, for models that read characters and count no vocabulary.
CHARACTERS = 256


@dataclass(frozen=True)
class Sizes:
    """What one call is made for. length: tokens, frames or samples, what the model counts; None for the usual one."""

    batch: int | None
    length: int | None


def parameters_of(model: nn.Module) -> inspect.Signature:
    """Return the signature of `model.forward`."""
    return inspect.signature(model.forward)


class Tensors:
    """What makes the tensors that `model` takes, at the sizes asked for; a method for each kind."""

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
        # A model that reads several things at once may name them all.
        named = model.main_input_name
        self.mains: tuple[str, ...] = (named,) if isinstance(named, str) else tuple(named)
        self.main = self.mains[0]

    def hidden_states(self) -> torch.Tensor:
        """Return what goes into a part of a model: the patches of a grid where it takes one, else embeddings."""
        return self.patches() if "grid_thw" in self.signature.parameters else self.embeddings()

    def encoder_hidden_states(self) -> torch.Tensor:
        """Return a sequence of vectors as wide as those that the model attends to beside its own."""
        return self.embeddings(("encoder_hidden_size", "cross_attention_hidden_size"))

    def in_patches(self) -> bool:
        """Tell whether the model takes images as rows of patches, with the grid that each image's make up."""
        return not {"grid_thw", "image_grid_thw"}.isdisjoint(self.signature.parameters)

    def patches(self) -> torch.Tensor:
        side = field(self.config, ("patch_size",))
        if not isinstance(side, int):
            raise InputError(f"{type(self.model).__name__}: its config has no patch_size; give --inputs file.py:fn")
        channels = field(self.config, ("in_channels", "num_channels", "in_chans")) or 3
        frames = field(self.config, ("temporal_patch_size", "patch_temporal")) or 1
        return self.normal((int(self.grid().prod(1).sum()), channels * frames * side * side))

    def square(self, patches: torch.Tensor) -> torch.Tensor:
        """Return rows of patches as small images: (patches, channels and frames, side, side)."""
        side = field(self.config, ("patch_size",))
        return patches.reshape(len(patches), -1, side, side)

    def grid(self) -> torch.Tensor:
        """Return the grid of each image: frames, rows and columns of patches, in whole merged ones."""
        side = 4 * int(field(self.config, ("spatial_merge_size",)) or 2)
        images = self.text_rows() if "input_ids" in self.signature.parameters else 1
        return torch.tensor([[1, side, side]], device=self.device).repeat(images, 1)

    def merge_sizes(self) -> torch.Tensor:
        """Return for each image of the grid by how many patches, along either side, one feature is made."""
        return torch.full(
            (len(self.grid()),), int(field(self.config, ("spatial_merge_size",)) or 2), device=self.device
        )

    def in_rows(self) -> bool:
        """Tell whether the model takes an image as rows of patches and says beside them where each one lies."""
        return not {"spatial_shapes", "pixel_position_ids"}.isdisjoint(self.signature.parameters)

    def patch_rows(self) -> torch.Tensor:
        """Return square images as rows of patches: (images, patches, values of a patch)."""
        side = int(field(self.config, ("patch_size",)) or ROWS_A_SIDE)
        channels = field(self.config, ("num_channels", "in_channels", "in_chans")) or 3
        return self.normal((self.image_rows(), ROWS_A_SIDE**2, channels * side * side))

    def patch_mask(self) -> torch.Tensor:
        return torch.ones(self.image_rows(), ROWS_A_SIDE**2, dtype=torch.long, device=self.device)

    def patch_shapes(self) -> torch.Tensor:
        """Return how many patches each image is high and wide."""
        return torch.full((self.image_rows(), 2), ROWS_A_SIDE, device=self.device)

    def patch_positions(self) -> torch.Tensor:
        """Return the column and row of each patch: (images, patches, 2)."""
        places = torch.cartesian_prod(torch.arange(ROWS_A_SIDE), torch.arange(ROWS_A_SIDE)).flip(-1)
        return places.repeat(self.image_rows(), 1, 1).to(self.device)

    def flattened_patches(self) -> torch.Tensor:
        """Return rows of patches, each behind its row and column, counted from one."""
        places = self.patch_positions().flip(-1) + 1
        return torch.cat([places.to(self.dtype), self.patch_rows()], -1)

    def image_rows(self) -> int:
        """Return how many images there are: one for each text where there are texts."""
        return self.text_rows() if "input_ids" in self.signature.parameters else self.sizes.batch or IMAGES

    def embeddings(self, first: tuple[str, ...] = ()) -> torch.Tensor:
        """Return a sequence of vectors as wide as the field `first` says, else as wide as the model's own."""
        width = field(self.config, first) or field(self.config, ("hidden_size", "d_model", "embed_dim"))
        if not isinstance(width, int):
            raise InputError(f"{type(self.model).__name__}: its config has no hidden_size; give --inputs file.py:fn")
        batch, length = ENCODER_SHAPE
        return self.normal((self.sizes.batch or batch, self.sizes.length or length, width))

    def text_rows(self) -> int:
        return self.sizes.batch or (CAUSAL_SHAPE if self.causal else ENCODER_SHAPE)[0]

    def text_length(self) -> int:
        """Return the tokens of a text: what was asked for, else the usual number that fits the table of positions."""
        limit = position_limit(self.model, self.config)
        if self.sizes.length and limit and self.sizes.length > limit:
            raise InputError(
                f"--seq-len {self.sizes.length}: {type(self.model).__name__} has a table of {limit} positions; "
                f"give at most {limit}"
            )
        length = (CAUSAL_SHAPE if self.causal else ENCODER_SHAPE)[1]
        return self.sizes.length or min(length, limit or length)

    def input_ids(self) -> torch.Tensor:
        ids = self.tokens(self.text_rows(), self.text_length(), vocabulary(self.model, self.config))
        end = field(self.config, ("eos_token_id",))
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
        start = field(self.config, ("decoder_start_token_id",))
        if isinstance(start, int):
            ids[:, 0] = start
        return ids

    def other_ids(self, name: str) -> torch.Tensor:
        """Return tokens for a part of the model that has a config of its own: `part_input_ids` for `part_config`."""
        part = getattr(self.config, name.removesuffix("input_ids") + "config", None)
        size = getattr(part, "vocab_size", None)
        return self.tokens(self.text_rows(), self.text_length(), size if isinstance(size, int) else None)

    def tokens(self, batch: int, length: int, size: int | None = None) -> torch.Tensor:
        """Return ids drawn from the vocabulary without its special tokens, whose places in a text are not random."""
        size = size or field(self.config, ("vocab_size",))
        if not isinstance(size, int):
            size = CHARACTERS
        ordinary = torch.ones(size, dtype=torch.bool)
        special = [i for i in special_tokens(self.config) if 0 <= i < size]
        ordinary[special] = False
        choice = ordinary.nonzero().flatten() if bool(ordinary.any()) else torch.arange(size)
        drawn = torch.randint(len(choice), (batch, length), generator=self.generator)
        return choice[drawn].to(self.device)

    def pixel_values(self) -> torch.Tensor:
        if self.in_patches():
            return self.patches()
        if self.in_rows():
            return self.patch_rows()
        channels = field(self.config, ("num_channels", "in_channels", "in_chans")) or 3
        frames = field(self.config, ("num_frames",))
        images = self.text_rows() if "input_ids" in self.signature.parameters else IMAGES
        batch = self.sizes.batch or (images if frames is None else 1)
        shape = (batch, channels, *height_width(field(self.config, ("image_size",))))
        return self.normal(shape if frames is None else (batch, frames, *shape[1:]))

    def waveform(self) -> torch.Tensor:
        """Return samples, with a dim for channels where the config counts them."""
        channels = field(self.config, ("audio_channels",))
        samples = (self.sizes.length if self.main == "input_values" else None) or SAMPLES
        batch = self.sizes.batch or AUDIO_BATCH
        return self.normal((batch, samples) if channels is None else (batch, channels, samples))

    def spectrograms(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return features, frames first, and bins first where a convolution takes bins as channels, else None."""
        bins = field(self.config, MEL_FIELDS)
        if not isinstance(bins, int):
            raise InputError(f"{type(self.model).__name__}: its config counts no mel bins; give --inputs file.py:fn")
        batch = self.sizes.batch or AUDIO_BATCH
        window = field(self.config, ("max_length",))
        length = self.sizes.length if self.main != "input_ids" and not self.seq2seq else None
        frames = window if isinstance(window, int) else length or FRAMES
        block = 2 * int(field(self.config, ("n_window",)) or 0)  # frames that some attend within: whole ones
        frames -= frames % block if block and frames > block else 0
        convolutions = time_convolutions(self.model, bins)
        if not convolutions:
            return self.normal((batch, frames, bins)), None
        positions = field(self.config, ("max_source_positions",))
        strides = math.prod(c.stride[0] for c in convolutions)
        # A fixed window: as many frames as the strides turn into the encoder's positions.
        fixed = positions * strides if isinstance(positions, int) else frames
        return self.normal((batch, frames, bins)), self.normal((batch, bins, fixed))

    def boxes(self) -> torch.Tensor:
        """Return a box for each token: left, top, right, bottom, in thousandths of a page."""
        most = field(self.config, ("max_2d_position_embeddings",)) or 1000
        rows, length = self.input_ids().shape
        corners = torch.randint(most, (rows, length, 2, 2), generator=self.generator).sort(dim=2).values
        return corners.flatten(2).to(self.device)

    def videos(self) -> torch.Tensor:
        """Return clips: (clips, frames, channels, height, width)."""
        frames = field(self.config, ("num_frames", "frames_per_clip")) or FRAMES_OF_CLIP
        channels = field(self.config, ("num_channels", "in_channels", "in_chans")) or 3
        size = height_width(field(self.config, ("image_size", "crop_size")))
        return self.normal((self.sizes.batch or 1, frames, channels, *size))

    def past_values(self) -> torch.Tensor:
        """Return a window of time series, with a dim for channels where the config counts them."""
        channels = field(self.config, ("num_input_channels",))
        shape = (self.sizes.batch or ENCODER_SHAPE[0], self.window())
        return self.normal(shape if channels is None else (*shape, channels))

    def window(self) -> int:
        """Return how many past steps a time series has: its context, and as many before it as the model looks back."""
        context = self.sizes.length or field(self.config, ("context_length",))
        if not isinstance(context, int):
            raise InputError(f"{type(self.model).__name__}: its config has no context_length; give --inputs file.py:fn")
        return context + int(max(field(self.config, ("lags_sequence",)) or [0]))

    def past_features(self) -> torch.Tensor:
        """Return features of the time of each past step, its age among them."""
        features = field(self.config, ("num_time_features",)) or 0
        return self.normal((self.sizes.batch or ENCODER_SHAPE[0], self.window(), features))

    def normal(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device, self.dtype)
