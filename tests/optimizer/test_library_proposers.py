"""Candidates for anchors: a packed linear, and attention through the tile registers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from hotswap.extractor.load_task import LoadedTask
from hotswap.extractor.task import Role, ShapeCase, Task, TensorSpec
from hotswap.models.machine import cpu_flags
from hotswap.optimizer.candidate import Candidate
from hotswap.optimizer.proposers.cpu_attention import CpuAttention
from hotswap.optimizer.proposers.packed_linear import PackedLinear

needs_amx = pytest.mark.skipif("amx_bf16" not in cpu_flags(), reason="this CPU has no AMX tiles")


def task_of(tensors: dict[str, torch.Tensor], weights: tuple[str, ...] = ()) -> Task:
    def role(name: str) -> Role:
        return "weight" if name in weights else "activation"

    specs = tuple(
        TensorSpec(n, tuple(t.shape), t.stride(), 0, str(t.dtype).removeprefix("torch."), role(n))
        for n, t in tensors.items()
    )
    case = ShapeCase("s0", specs, 1, 1.0, 100.0)
    return Task("t", "f" * 16, "anchor", "cpu", (), tuple(tensors), 1, (case,), (), 100.0, 50.0, 0.5, 1.3)


def kernel_of(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(source, "candidate", "exec"), names)
    return names


def loaded(task: Task, reference: Callable[..., tuple[torch.Tensor, ...]]) -> LoadedTask:
    return LoadedTask(Path("nowhere"), task, reference, "", {})


def packed_linear(
    given: dict[str, torch.Tensor], reference: Callable[..., tuple[torch.Tensor, ...]]
) -> Candidate | None:
    task = task_of(given, ("weight", "bias"))
    return PackedLinear(loaded(task, reference)).propose(task, [])


@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_linear_computes_the_linear(bias: bool) -> None:
    torch.manual_seed(0)
    given = {"x": torch.randn(3, 7, 48), "weight": torch.randn(20, 48)}
    given |= {"bias": torch.randn(20)} if bias else {}
    candidate = packed_linear(given, lambda *inputs: (F.linear(*inputs),))
    assert candidate is not None
    names = kernel_of(candidate.source)
    packed = names["prepare"](*given.values())
    torch.testing.assert_close(names["kernel"](*given.values(), packed=packed), F.linear(*given.values()))
    assert names["STATIC_WEIGHTS"] is True
    assert names["LABEL"] == "library call"


def test_a_matrix_that_is_no_weight_of_the_model_is_never_packed() -> None:
    task = task_of({"x": torch.randn(4, 8), "y": torch.randn(8, 8)})
    assert PackedLinear(loaded(task, lambda x, y: (F.linear(x, y),))).propose(task, []) is None


ACTIVATIONS = [
    F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.relu, F.silu, torch.sigmoid, torch.tanh,
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_after_a_packed_linear_is_given_to_the_library(activation: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    given = {"x": torch.randn(3, 7, 48), "weight": torch.randn(20, 48), "bias": torch.randn(20)}
    candidate = packed_linear(given, lambda *inputs: (activation(F.linear(*inputs)),))
    assert candidate is not None
    names = kernel_of(candidate.source)
    out = names["kernel"](*given.values(), packed=names["prepare"](*given.values()))
    torch.testing.assert_close(out, activation(F.linear(*given.values())))


def test_what_the_library_has_no_activation_for_is_not_offered_as_one() -> None:
    given = {"x": torch.randn(3, 7, 48), "weight": torch.randn(20, 48)}
    assert packed_linear(given, lambda x, w: (F.linear(x, w).sin(),)) is None
    assert packed_linear(given, lambda x, w: (F.gelu(F.linear(x, w)) * 2,)) is None


def attention(causal: bool = False, scale: float | None = None) -> Callable[..., tuple[torch.Tensor, ...]]:
    def reference(q: Any, k: Any, v: Any) -> tuple[torch.Tensor, ...]:
        return (F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale),)

    return reference


def masked(q: Any, k: Any, v: Any, mask: Any) -> tuple[torch.Tensor, ...]:
    return (F.scaled_dot_product_attention(q, k, v, attn_mask=mask),)


def heads(queries: int, keys: int, depth: int) -> dict[str, torch.Tensor]:
    shapes = {"q": queries, "k": keys, "v": keys}
    return {n: torch.randn(2, length, 3, depth).bfloat16().transpose(1, 2) for n, length in shapes.items()}


def error_beside_torch(reference: Callable[..., Any], given: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Return our relative error in norm to an fp64 run, and torch's."""
    task = task_of(given)
    candidate = CpuAttention(loaded(task, reference)).propose(task, [])
    assert candidate is not None
    ours = kernel_of(candidate.source)["kernel"](*given.values())
    (theirs,) = reference(*given.values())
    (exact,) = reference(*(t.double() if t.is_floating_point() else t for t in given.values()))
    assert ours.stride() == theirs.stride()
    ours_error, their_error = (((o.double() - exact).norm() / exact.norm()).item() for o in (ours, theirs))
    return ours_error, their_error


@needs_amx
@pytest.mark.parametrize(("queries", "keys", "depth"), [(128, 128, 32), (77, 65, 64), (1, 5, 16), (33, 40, 80)])
def test_attention_is_as_exact_as_torch_at_any_length_and_head_size(queries: int, keys: int, depth: int) -> None:
    torch.manual_seed(0)
    ours, theirs = error_beside_torch(attention(), heads(queries, keys, depth))
    assert ours <= 1.2 * theirs + 1e-4


@needs_amx
@pytest.mark.parametrize("kind", ["bool", "bfloat16", "expanded"])
def test_attention_takes_masks_of_every_kind(kind: str) -> None:
    torch.manual_seed(0)
    given = heads(20, 37, 32)
    if kind == "bool":
        mask = torch.rand(2, 3, 20, 37) > 0.4
        mask[..., 0] = True
    elif kind == "expanded":
        mask = (torch.arange(37) < 30).expand(2, 3, 20, 37)
    else:
        mask = torch.randn(2, 1, 1, 37).bfloat16()
    ours, theirs = error_beside_torch(masked, {**given, "mask": mask})
    assert ours <= 1.2 * theirs + 1e-4


@needs_amx
def test_causal_attention_and_its_scale_are_taken_from_the_reference() -> None:
    torch.manual_seed(0)
    ours, theirs = error_beside_torch(attention(causal=True, scale=0.3), heads(40, 40, 32))
    assert ours <= 1.2 * theirs + 1e-4


def test_a_reference_that_does_more_than_attention_is_left_to_others() -> None:
    given = heads(8, 8, 32)
    task = task_of(given)

    def more(q: Any, k: Any, v: Any) -> tuple[torch.Tensor, ...]:
        return (F.scaled_dot_product_attention(q, k, v) * 2,)

    assert CpuAttention(loaded(task, more)).propose(task, []) is None


@needs_amx
def test_where_torch_s_fused_attention_does_not_apply_the_layout_follows_torch_too() -> None:
    given = heads(9, 12, 32)
    given["v"] = torch.randn(2, 3, 12, 15).bfloat16()
    ours, theirs = error_beside_torch(attention(), given)
    assert ours <= 1.2 * theirs + 1e-4


@needs_amx
def test_keys_and_values_of_one_batch_serve_all_queries() -> None:
    given = heads(9, 12, 32)
    given |= {name: given[name][:1] for name in ("k", "v")}
    ours, theirs = error_beside_torch(attention(), given)
    assert ours <= 1.2 * theirs + 1e-4
