"""Models from elsewhere than transformers: plain PyTorch that a tracer, a cutter or a swap may trip over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hotswap.models.workload import Call, Workload

from .elsewhere_control import CONTROL
from .elsewhere_vision import VISION

Made = tuple[nn.Module, Any]


def workload(name: str) -> Workload:
    """Return the workload called `name`, with weights and inputs from a fixed seed."""
    torch.manual_seed(0)
    model, calls = MODELS[name]()
    if not isinstance(calls, list):
        calls = [Call(args=calls if isinstance(calls, tuple) else (calls,), name="example")]
    return Workload(model.eval(), tuple(calls), spec=name)


class GraphNet(nn.Module):
    """Two rounds of message passing over an edge list, by gather and index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(48, 32), nn.Linear(56, 24)
        self.norm = nn.LayerNorm(24)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        for _ in range(2):
            sent = torch.relu(self.message(torch.cat([nodes[source], nodes[target]], -1)))
            gathered = nodes.new_zeros(len(nodes), 32).index_add(0, target, sent)
            nodes = nodes + self.norm(self.update(torch.cat([nodes, gathered], -1)))
        return nodes.mean(0)


class GraphAttention(nn.Module):
    """Attention over edges: a softmax by segments, by scatter_reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.score, self.out = nn.Linear(16, 32), nn.Linear(64, 1), nn.Linear(32, 8)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        h = self.project(nodes)
        score = nn.functional.leaky_relu(self.score(torch.cat([h[source], h[target]], -1)), 0.2).squeeze(-1)
        most = score.new_full((len(nodes),), -torch.inf).scatter_reduce(0, target, score, "amax")
        weight = torch.exp(score - most[target])
        total = weight.new_zeros(len(nodes)).scatter_add(0, target, weight)
        message = h[source] * (weight / total[target]).unsqueeze(-1)
        return self.out(torch.zeros_like(h).index_add(0, target, message))


class Recurrent(nn.Module):
    """A bidirectional LSTM and a GRU over text, with a linear head on the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 24)
        self.lstm = nn.LSTM(24, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(32, 16, batch_first=True)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        sequence, (hidden, _) = self.lstm(self.embed(ids))
        sequence, _ = self.gru(sequence)
        return self.head(nn.functional.gelu(self.norm(sequence))), hidden


class HandmadeRecurrence(nn.Module):
    """An LSTM cell stepped by a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(12, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 20)
        c = torch.zeros_like(h)
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
        return self.head(torch.tanh(h) * 0.5 + h)


class Packed(nn.Module):
    """A GRU over packed sequences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        _, hidden = self.gru(packed)
        return torch.softmax(self.head(torch.sigmoid(hidden[0]) * hidden[0]), -1)


class Transducer(nn.Module):
    """torch's own nn.Transformer: its fused inference path is one op that no graph shows."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(32, 4, 2, 2, 64, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.body(source, target, tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]))


class StateSpace(nn.Module):
    """A selective scan by a cumulative sum in log space."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.gate, self.out = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        decay = torch.cumsum(-nn.functional.softplus(self.gate(x)), 1)
        state = torch.exp(decay) * torch.cumsum(self.into(x) * torch.exp(-decay.clamp(min=-20.0)), 1)
        return x + self.out(state * torch.sigmoid(state))


class Complex(nn.Module):
    """A Fourier neural operator's layer: complex numbers between real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, 5, dtype=torch.cfloat) * 0.1)
        self.local = nn.Conv1d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(x)
        kept = torch.einsum("bik,iok->bok", modes[..., :5], self.weight)
        return nn.functional.gelu(torch.fft.irfft(kept, n=x.shape[-1]) + self.local(x))


class Recommender(nn.Module):
    """Embedding bags, pairwise products and an MLP, as in DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 16, mode="sum") for _ in range(3))
        self.dense = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(22, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
        x = self.dense(dense)
        every = torch.stack([x, *(bag(ids, offsets) for bag in self.bags)], 1)
        pairs = every @ every.transpose(1, 2)
        row, column = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([x, pairs[:, row, column]], -1)).squeeze(-1)


class PointNet(nn.Module):
    """Points to a class: shared MLPs by 1x1 convolutions, a max over points, a learned rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())
        self.matrix = nn.Linear(16, 9)
        self.body = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 64, 1))
        self.head = nn.Linear(64, 10)

    def forward(self, points: Tensor) -> Tensor:
        rotation = self.matrix(self.turn(points).amax(-1)).view(-1, 3, 3) + torch.eye(3)
        return torch.log_softmax(self.head(self.body(rotation @ points).amax(-1)), -1)


class Sparse(nn.Module):
    """A sparse matrix times dense features, as in a graph convolution over a fixed graph."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", (torch.rand(20, 20) > 0.8).float().to_sparse())
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(torch.sparse.mm(self.adjacency, self.one(x)))
        return torch.sparse.mm(self.adjacency, self.two(hidden))


def _edges() -> Tensor:
    return torch.randint(0, 20, (2, 60))


SEQUENCES: dict[str, Callable[[], Made]] = {
    "graph-net": lambda: (GraphNet(), (torch.randn(20, 24), _edges())),
    "graph-attention": lambda: (GraphAttention(), (torch.randn(20, 16), _edges())),
    "lstm-gru": lambda: (Recurrent(), torch.randint(0, 100, (2, 12))),
    "lstm-cell-loop": lambda: (HandmadeRecurrence(), torch.randn(2, 6, 12)),
    "gru-packed": lambda: (Packed(), (torch.randn(3, 7, 8), torch.tensor([7, 3, 5]))),
    "nn-transformer": lambda: (Transducer(), (torch.randn(2, 9, 32), torch.randn(2, 5, 32))),
    "state-space": lambda: (StateSpace(), torch.randn(2, 10, 16)),
    "fourier-operator": lambda: (Complex(), torch.randn(2, 8, 32)),
    "recommender": lambda: (
        Recommender(),
        (torch.randn(6, 4), torch.randint(0, 50, (14,)), torch.tensor([0, 2, 5, 7, 9, 12])),
    ),
    "point-net": lambda: (PointNet(), torch.randn(2, 3, 40)),
    "sparse-matrix": lambda: (Sparse(), torch.randn(20, 8)),
}

MODELS: dict[str, Callable[[], Made]] = {**SEQUENCES, **VISION, **CONTROL}
