"""Vision models of the families that torchvision and timm hold, and of diffusion, small and written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """A residual block with batch norms, as in a ResNet; groups and width as in ResNeXt."""

    def __init__(self, channels: int, groups: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + x, inplace=True)


class DenseBlock(nn.Module):
    """Every layer reads all earlier ones, concatenated, as in a DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(8 + 4 * i), nn.ReLU(), nn.Conv2d(8 + 4 * i, 4, 3, padding=1)) for i in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1).mean((2, 3))


class SqueezeExcite(nn.Module):
    """A depthwise block with gates, as in MobileNetV3 and EfficientNet."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.deep = nn.Conv2d(8, 24, 1), nn.Conv2d(24, 24, 5, padding=2, groups=24)
        self.norm = nn.BatchNorm2d(24)
        self.squeeze, self.excite, self.project = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1), nn.Conv2d(24, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.hardswish(self.norm(self.deep(F.hardswish(self.expand(x)))))
        gate = F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(h, 1)))))
        return x + self.project(h * gate)


class ConvNextBlock(nn.Module):
    """A channels-last block: permute, layer norm, two linears, layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.norm = nn.Conv2d(16, 16, 7, padding=3, groups=16), nn.LayerNorm(16)
        self.one, self.two = nn.Linear(16, 64), nn.Linear(64, 16)
        self.scale = nn.Parameter(torch.full((16,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.two(F.gelu(self.one(self.norm(self.deep(x).permute(0, 2, 3, 1))))) * self.scale
        return x + h.permute(0, 3, 1, 2)


class WindowAttention(nn.Module):
    """Attention in shifted windows with a table of relative positions, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.bias = nn.Parameter(torch.randn(2, 16, 16) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        shifted = torch.roll(x, (-2, -2), (1, 2))
        windows = shifted.view(b, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
        q, k, v = self.qkv(windows).view(-1, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        score = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(8) + self.bias, -1)
        made = self.out((score @ v).transpose(1, 2).reshape(-1, 16, c))
        back = made.view(b, h // 4, w // 4, 4, 4, c).transpose(2, 3).reshape(b, h, w, c)
        return x + torch.roll(back, (2, 2), (1, 2))


class UNet(nn.Module):
    """Down, across and up again with skips; group norm, SiLU and a time embedding, as in a diffusion model."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.first, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, 16) for _ in range(3))
        self.mid, self.up, self.last = (
            nn.Conv2d(16, 16, 3, padding=1),
            nn.ConvTranspose2d(16, 16, 2, stride=2),
            nn.Conv2d(32, 3, 3, padding=1),
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rates = torch.exp(-torch.arange(8, device=x.device) * math.log(1e4) / 8)
        angles = t[:, None].float() * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))[..., None, None]
        one = F.silu(self.norms[0](self.first(x)) + time)
        two = F.silu(self.norms[1](self.down(one)) + time)
        three = F.silu(self.norms[2](self.mid(two))) + two
        return self.last(torch.cat([self.up(three), one], 1))


class DiffusionTransformer(nn.Module):
    """A block whose norms are shifted and scaled by the time, as in DiT."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.time = nn.Conv2d(4, 32, 2, 2), nn.Linear(8, 32)
        self.modulate = nn.Linear(32, 192)
        self.one, self.two = (nn.LayerNorm(32, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.into, self.outof, self.last = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor, t: Tensor) -> dict[str, Any]:
        h = self.patch(x).flatten(2).transpose(1, 2)
        c = self.modulate(F.silu(self.time(t)))[:, None].chunk(6, -1)
        q, k, v = self.qkv(self.one(h) * (1 + c[0]) + c[1]).chunk(3, -1)
        heads = [part.unflatten(-1, (4, 8)).transpose(1, 2) for part in (q, k, v)]
        h = h + c[2] * self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        h = h + c[5] * self.outof(F.gelu(self.into(self.two(h) * (1 + c[3]) + c[4]), approximate="tanh"))
        return {"sample": self.last(h), "hidden": {"last": h, "none": None}}


class Detector(nn.Module):
    """A backbone, boxes and scores, and a choice of the best boxes whose number depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1))
        self.score, self.box = nn.Conv2d(16, 1, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
        h = F.relu(self.body(x))
        scores, boxes = torch.sigmoid(self.score(h)).flatten(1), self.box(h).flatten(2).transpose(1, 2).exp()
        found = []
        for score, box in zip(scores, boxes, strict=True):
            kept = score > 0.5
            found.append({"scores": score[kept], "boxes": box[kept] * 2.0 + 1.0})
        return found


VISION: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "resnet": lambda: (
        nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), Bottleneck(16), Bottleneck(16)),
        torch.randn(2, 3, 32, 32),
    ),
    "resnext": lambda: (Bottleneck(16, groups=4), torch.randn(2, 16, 12, 12)),
    "resnet-channels-last": lambda: (
        Bottleneck(16).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        torch.randn(2, 16, 12, 12).to(memory_format=torch.channels_last),
    ),
    "densenet": lambda: (DenseBlock(), torch.randn(2, 8, 12, 12)),
    "mobilenet-v3": lambda: (SqueezeExcite(), torch.randn(2, 8, 14, 14)),
    "convnext": lambda: (ConvNextBlock(), torch.randn(2, 16, 10, 10)),
    "swin-window": lambda: (WindowAttention(), torch.randn(2, 8, 8, 16)),
    "unet": lambda: (UNet(), (torch.randn(2, 3, 16, 16), torch.tensor([3, 500]))),
    "diffusion-transformer": lambda: (DiffusionTransformer(), (torch.randn(2, 4, 8, 8), torch.randn(2, 8))),
    "detector": lambda: (Detector(), torch.randn(2, 3, 32, 32)),
}
