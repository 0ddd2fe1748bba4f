"""Everybody who may have something for a task. Each says None, or why, where it is not for him."""

from __future__ import annotations

from ...extractor.load_task import LoadedTask
from ..candidate import Proposer
from .apart import Apart
from .attention_choice import AttentionChoice
from .cpu_attention import CpuAttention
from .cross_entropy import CrossEntropy
from .epilogue import Epilogue
from .gemv import Gemv
from .linear_cross_entropy import LinearCrossEntropy
from .matmul_epilogue import MatmulEpilogue
from .merged_linears import MergedLinears
from .merged_matmul import MergedMatmul
from .packed_linear import PackedLinear
from .padded_linear import PaddedLinear
from .template import Template
from .wide_softmax import WideSoftmax


def proposers(loaded: LoadedTask) -> list[Proposer]:
    """Return the proposers that need nobody's answer for a task on its device, templates of an anchor first."""
    if loaded.task.device == "cpu":
        return [PackedLinear(loaded), CpuAttention(loaded), Epilogue(loaded), Template(loaded)]
    return [
        CrossEntropy(loaded), LinearCrossEntropy(loaded), WideSoftmax(loaded), MergedLinears(loaded),
        MergedMatmul(loaded), PaddedLinear(loaded), AttentionChoice(loaded), Gemv(loaded), MatmulEpilogue(loaded),
        Epilogue(loaded), Template(loaded), Apart(loaded),
    ]  # fmt: skip
