"""Odd control flow and odd outputs: what plain PyTorch allows a forward to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from hotswap.models.workload import Call


def _mlp(width: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))


class DataBranch(nn.Module):
    """Takes one of two ways by the sign of a mean: a graph break, with work before and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = _mlp(), _mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x) * 2.0
        return torch.softmax(self.one(x) + x if x.mean() > 0 else self.two(x) - x, -1)


class DataLoop(nn.Module):
    """Repeats until a residual is small: the number of turns is in the data."""

    def __init__(self) -> None:
        super().__init__()
        self.step = _mlp()

    def forward(self, x: Tensor) -> Tensor:
        turns = 0
        while x.norm() > 4.0 and turns < 6:
            x = 0.5 * x + 0.1 * torch.tanh(self.step(x))
            turns += 1
        return x


class EarlyExit(nn.Module):
    """Leaves after the first layer that is sure enough, and says which."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.heads = (
            nn.ModuleList(_mlp() for _ in range(3)),
            nn.ModuleList(nn.Linear(32, 4) for _ in range(3)),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        logits = x
        for depth, (layer, head) in enumerate(zip(self.layers, self.heads, strict=True)):
            x = x + layer(x)
            logits = torch.softmax(head(x), -1)
            if logits.amax(-1).mean().item() > 0.4:
                return logits, depth
        return logits, len(self.layers)


class ExpertChoice(nn.Module):
    """A mixture of experts by a loop over experts and index_add of the rows each takes."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(32, 4), nn.ModuleList(_mlp() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.softmax(self.gate(x), -1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, slot = torch.where(chosen == number)
            out.index_add_(0, row, expert(x[row]) * weights[row, slot].unsqueeze(-1))
        return out


class WritesInput(nn.Module):
    """Changes its input in place, and returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _mlp()

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(0.5).add_(1.0)
        return x.add_(self.body(x))


class WritesBuffer(nn.Module):
    """Keeps a running mean and a count of its calls, in inference too."""

    mean: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = _mlp()
        self.register_buffer("mean", torch.zeros(32))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean.lerp_(x.mean(0), 0.1)
        return self.body(x - self.mean) * torch.sigmoid(x)


class WritesSlice(nn.Module):
    """Fills a preallocated cache by slices, as a static key-value cache is."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = _mlp()
        self.register_buffer("cache", torch.zeros(8, 32), persistent=False)

    def forward(self, x: Tensor, at: int) -> Tensor:
        self.cache[at : at + len(x)] = F.silu(self.body(x)) * x
        return self.cache.clone() + self.cache.mean(0)


class Aliases(nn.Module):
    """Returns a view of its input, the input and a value made of them, and one tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _mlp()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.body(x) + x
        return x, x[:, :4], y, y, y.transpose(0, 1)


@dataclass
class Found:
    """What a model may return."""

    logits: Tensor
    hidden: Tensor | None = None
    note: str = "none"


class Pair(NamedTuple):
    """A named tuple of outputs."""

    first: Tensor
    rest: list[Tensor]


class ReturnsDataclass(nn.Module):
    """Returns a plain dataclass with a None and a string in it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _mlp()

    def forward(self, x: Tensor) -> Found:
        return Found(torch.log_softmax(self.body(x) + x, -1), note=f"width {x.shape[-1]}")


class ReturnsNested(nn.Module):
    """Returns dicts in lists in named tuples, with None, numbers and an empty tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _mlp()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> dict[str, Any]:
        y = self.body(x) * (1.0 if mask is None else mask)
        return {
            "pair": Pair(y, [y.exp() + 1.0, x]),
            "empty": (),
            "none": None,
            "count": 3,
            "deep": [{"a": y.relu() * y}],
        }


class ReturnsNone(nn.Module):
    """Returns nothing; its work goes into an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.seen = _mlp(), None

    def forward(self, x: Tensor) -> None:
        self.seen = self.body(x)


class Doubled(torch.autograd.Function):
    """A custom autograd function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2.0 + torch.sin(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2.0


class CustomFunction(nn.Module):
    """Calls a custom autograd function between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = _mlp(), _mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(Doubled.apply(self.one(x)))  # type: ignore[no-untyped-call]


class Checkpointed(nn.Module):
    """Runs its layers under activation checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_mlp() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return F.normalize(x, dim=-1)


class Hooked(nn.Module):
    """Has hooks on a submodule: one that looks, one that replaces the output."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = _mlp(), _mlp()
        self.norms: list[float] = []
        self.one.register_forward_hook(lambda module, args, output: output * 1.5 + 0.5)
        self.two.register_forward_pre_hook(lambda module, args: (args[0].clamp(-2, 2),))

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x)) + x


class Parametrized(nn.Module):
    """Weight norm and spectral norm: weights that are computed at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.one = parametrizations.weight_norm(nn.Linear(32, 64))
        self.two = parametrizations.spectral_norm(nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(self.two(F.mish(self.one(x))) + x, (32,))


class Reused(nn.Module):
    """One module called three times, at three shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.body(x[:1]) + self.body(x.mean(0))


class TiedAutocast(nn.Module):
    """Tied weights, and a forward that switches autocast on for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(50, 32), _mlp()
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.body(self.embed(ids))
        return self.head(hidden.float() + 1.0)


class NumpyInside(nn.Module):
    """Goes through numpy and a print-like call in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = _mlp(), _mlp()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.one(x)) * x
        order = torch.from_numpy(y.detach().numpy().sum(-1).argsort())
        return self.two(y[order]) + y


class Undrawn(nn.Module):
    """Draws noise and applies dropout although it is in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = _mlp()

    def forward(self, x: Tensor) -> Tensor:
        noisy = x + torch.randn_like(x) * 0.1
        return self.body(F.dropout(noisy, 0.2, training=True)) * torch.sigmoid(noisy)


class Generator(nn.Module):
    """Decodes greedily inside its forward, growing a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(40, 32), _mlp(), nn.Linear(32, 40)

    def forward(self, ids: Tensor) -> Tensor:
        for _ in range(4):
            hidden = torch.cumsum(self.embed(ids), 1)
            ids = torch.cat([ids, self.head(self.body(hidden[:, -1])).argmax(-1, keepdim=True)], 1)
        return ids


def _compiled() -> nn.Module:
    inner: Any = _mlp()
    return torch.compile(inner, backend="eager")  # type: ignore[no-any-return]


def _x() -> Tensor:
    return torch.randn(4, 32)


CONTROL: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "data-branch": lambda: (DataBranch(), [Call((_x() + 1,), name="plus"), Call((_x() - 1,), name="minus")]),
    "data-loop": lambda: (DataLoop(), _x()),
    "early-exit": lambda: (EarlyExit(), _x()),
    "expert-choice": lambda: (ExpertChoice(), torch.randn(10, 32)),
    "writes-input": lambda: (WritesInput(), _x()),
    "writes-buffer": lambda: (WritesBuffer(), _x()),
    "writes-slice": lambda: (WritesSlice(), (_x(), 2)),
    "aliases": lambda: (Aliases(), _x()),
    "returns-dataclass": lambda: (ReturnsDataclass(), _x()),
    "returns-nested": lambda: (
        ReturnsNested(),
        [Call((_x(),), name="bare"), Call((_x(),), {"mask": _x()}, name="masked")],
    ),
    "returns-none": lambda: (ReturnsNone(), _x()),
    "autograd-function": lambda: (CustomFunction(), _x()),
    "checkpointed": lambda: (Checkpointed(), _x()),
    "hooked": lambda: (Hooked(), _x()),
    "parametrized": lambda: (Parametrized(), _x()),
    "reused": lambda: (Reused(), _x()),
    "tied-autocast": lambda: (TiedAutocast(), torch.randint(0, 50, (2, 9))),
    "numpy-inside": lambda: (NumpyInside(), _x()),
    "random-inside": lambda: (Undrawn(), _x()),
    "greedy-inside": lambda: (Generator(), torch.randint(0, 40, (2, 5))),
    "scripted": lambda: (torch.jit.script(_mlp()), _x()),
    "scripted-inside": lambda: (nn.Sequential(_mlp(), torch.jit.script(_mlp()), nn.Softmax(-1)), _x()),
    "compiled-already": lambda: (_compiled(), _x()),
}
