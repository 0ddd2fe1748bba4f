"""A diffusion transformer of two streams that become one, as text-to-image models are built; plain PyTorch.

Its blocks follow the public description of FLUX.1: image and text tokens each with their own weights and one attention
(double), then one sequence whose attention and MLP run side by side (single), both modulated by time and prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, silu

_FREQUENCIES = 256


class DiffusionTransformer(nn.Module):
    """forward: image (rows, tokens, channels), text (rows, tokens, text width), pooled (rows, pooled width), time and
    guidance (rows,), positions (tokens of text and image, axes) -> velocity (rows, image tokens, channels).
    """

    def __init__(
        self,
        *,
        channels: int,
        width: int,
        heads: int,
        double_blocks: int,
        single_blocks: int,
        text_width: int,
        pooled_width: int,
        axes: Sequence[int],
        mlp_ratio: int = 4,
        theta: float = 10000.0,
    ) -> None:
        super().__init__()
        self.axes, self.theta = tuple(axes), theta
        self.image_in, self.text_in = nn.Linear(channels, width), nn.Linear(text_width, width)
        self.time_in, self.guidance_in = _embedder(_FREQUENCIES, width), _embedder(_FREQUENCIES, width)
        self.pooled_in = _embedder(pooled_width, width)
        self.double_stream = nn.ModuleList(_Double(width, heads, mlp_ratio) for _ in range(double_blocks))
        self.single_stream = nn.ModuleList(_Single(width, heads, mlp_ratio) for _ in range(single_blocks))
        self.last = _Modulation(width, 2)
        self.out = nn.Linear(width, channels)

    def forward(
        self,
        image: torch.Tensor,
        text: torch.Tensor,
        pooled: torch.Tensor,
        time: torch.Tensor,
        guidance: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        image, text = self.image_in(image), self.text_in(text)
        said = self.time_in(_sinusoids(time, image.dtype)) + self.guidance_in(_sinusoids(guidance, image.dtype))
        said = said + self.pooled_in(pooled)
        turns = self._turns(positions)
        for block in self.double_stream:
            image, text = block(image, text, said, turns)
        both = torch.cat((text, image), 1)
        for block in self.single_stream:
            both = block(both, said, turns)
        shift, scale = self.last(said)
        image = both[:, text.shape[1] :]
        return self.out(_modulated(image, shift, scale))  # type: ignore[no-any-return]

    def _turns(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines (1, 1, tokens, head width / 2), fp32: each axis turns a part of the head."""
        angles = []
        for axis, size in enumerate(self.axes):
            steps = torch.arange(0, size, 2, dtype=torch.float32, device=positions.device) / size
            angles.append(positions[:, axis, None].float() * self.theta**-steps)
        angle = torch.cat(angles, -1)[None, None]
        return angle.cos(), angle.sin()


class _Modulation(nn.Module):
    """`parts` vectors (rows, 1, width) from what time and prompt say."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.linear = nn.Linear(width, parts * width)

    def forward(self, said: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.linear(silu(said))[:, None].chunk(self.parts, -1)  # type: ignore[no-any-return]


class _Heads(nn.Module):
    """Queries, keys and values of one stream (rows, heads, tokens, head width), queries and keys normalised."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.query_norm, self.key_norm = nn.RMSNorm(width // heads, eps=1e-6), nn.RMSNorm(width // heads, eps=1e-6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.query_norm(query), self.key_norm(key), value


class _Double(nn.Module):
    def __init__(self, width: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.modulate = nn.ModuleList(_Modulation(width, 6) for _ in range(2))
        self.heads = nn.ModuleList(_Heads(width, heads) for _ in range(2))
        self.project = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.mlp = nn.ModuleList(_mlp(width, mlp_ratio) for _ in range(2))

    def forward(
        self, image: torch.Tensor, text: torch.Tensor, said: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        streams = (text, image)
        parts = [modulate(said) for modulate in self.modulate]
        made = [
            heads(_modulated(x, shift, scale))
            for x, heads, (shift, scale, *_) in zip(streams, self.heads, parts, strict=True)
        ]
        query, key, value = (torch.cat(pair, 2) for pair in zip(*made, strict=True))
        seen = _attention(query, key, value, turns).split([x.shape[1] for x in streams], 1)
        done = []
        for i, x in enumerate(streams):
            _, _, gate, shift, scale, mlp_gate = parts[i]
            x = x + gate * self.project[i](seen[i])
            done.append(x + mlp_gate * self.mlp[i](_modulated(x, shift, scale)))
        return done[1], done[0]


class _Single(nn.Module):
    def __init__(self, width: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.modulate = _Modulation(width, 3)
        self.heads = _Heads(width, heads)
        self.up = nn.Linear(width, mlp_ratio * width)
        self.act = nn.GELU(approximate="tanh")
        self.down = nn.Linear((1 + mlp_ratio) * width, width)

    def forward(self, x: torch.Tensor, said: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        shift, scale, gate = self.modulate(said)
        inner = _modulated(x, shift, scale)
        seen = _attention(*self.heads(inner), turns)
        return x + gate * self.down(torch.cat((seen, self.act(self.up(inner))), -1))  # type: ignore[no-any-return]


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Return attention over all tokens (rows, tokens, width)."""
    return scaled_dot_product_attention(_turned(query, turns), _turned(key, turns), value).transpose(1, 2).flatten(2)


def _turned(x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return `x` with each pair of neighbours turned by its angle, in fp32 inside."""
    cos, sin = turns
    first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2).to(x.dtype)


def _modulated(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


def _mlp(width: int, ratio: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, ratio * width), nn.GELU(approximate="tanh"), nn.Linear(ratio * width, width))


def _embedder(width_in: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width_in, width), nn.SiLU(), nn.Linear(width, width))


def _sinusoids(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return (rows, 256) cosines and sines of 1000 x value."""
    half = _FREQUENCIES // 2
    rates = 10000.0 ** -(torch.arange(half, dtype=torch.float32, device=value.device) / half)
    angle = 1000.0 * value.float()[:, None] * rates
    return torch.cat((angle.cos(), angle.sin()), -1).to(dtype)


def example_inputs(model: DiffusionTransformer, rows: int, side: int, text: int, seed: int) -> dict[str, torch.Tensor]:
    """Return the arguments for `rows` images of side x side tokens and `text` tokens each, in fp32 on the CPU."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    grid = torch.cartesian_prod(torch.zeros(1), torch.arange(side).float(), torch.arange(side).float())
    return {
        "image": normal(rows, side * side, model.image_in.in_features),
        "text": normal(rows, text, model.text_in.in_features),
        "pooled": normal(rows, model.pooled_in[0].in_features),
        "time": torch.full((rows,), 0.5),
        "guidance": torch.full((rows,), 3.5),
        "positions": torch.cat((torch.zeros(text, 3), grid)).long(),
    }
