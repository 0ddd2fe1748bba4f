"""Attention of our own on a CPU: as exact as torch's at any size, mask and layout, through vectors and tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from hotswap.extractor.load_task import LoadedTask
from hotswap.extractor.task import ShapeCase, Task, TensorSpec
from hotswap.models.machine import cpu_flags
from hotswap.optimizer import native
from hotswap.optimizer.attempt import Attempt
from hotswap.optimizer.candidate import Candidate
from hotswap.optimizer.proposers import cpu_attention
from hotswap.optimizer.proposers.cpu_attention import CpuAttention
from hotswap.optimizer.verdict import Verdict

Reference = Callable[..., tuple[torch.Tensor, ...]]

# Other CPUs of this family, by what the compiler is told: without AVX-512, and without AVX.
OLDER = [m for m, needs in (("x86-64-v3", "avx2"), ("x86-64", "sse2")) if needs in cpu_flags()]
SIMULATED = (Path(__file__).parent / "tile_registers.h").read_text(encoding="utf-8")
pairs_of_bf16 = pytest.mark.skipif("avx512_bf16" not in cpu_flags(), reason="no instructions for pairs of bf16")


def attention(*, causal: bool = False, scale: float | None = None, grouped: bool = False) -> Reference:
    def reference(q: Any, k: Any, v: Any) -> tuple[torch.Tensor, ...]:
        return (F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped),)

    return reference


def masked(q: Any, k: Any, v: Any, mask: Any) -> tuple[torch.Tensor, ...]:
    return (F.scaled_dot_product_attention(q, k, v, attn_mask=mask),)


def heads(queries: int, keys: int, depth: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return q, k and v of (2, 3, length, depth), heads inside rows as a linear leaves them."""
    shapes = {"q": queries, "k": keys, "v": keys}
    return {n: torch.randn(2, length, 3, depth).to(dtype).transpose(1, 2) for n, length in shapes.items()}


def task_of(given: dict[str, torch.Tensor], device: str = "cpu") -> Task:
    specs = tuple(
        TensorSpec(n, tuple(t.shape), t.stride(), 0, str(t.dtype).removeprefix("torch."), "activation")
        for n, t in given.items()
    )
    case = ShapeCase("s0", specs, 1, 1.0, 100.0)
    return Task("t", "f" * 16, "anchor", device, (), tuple(given), 1, (case,), (), 100.0, 50.0, 0.5, 1.3)


def candidate(reference: Reference, given: dict[str, torch.Tensor], device: str = "cpu") -> Candidate | None:
    task = task_of(given, device)
    return CpuAttention(LoadedTask(Path("nowhere"), task, reference, "", {})).propose(task, [])


def written(reference: Reference, given: dict[str, torch.Tensor]) -> str:
    """Return the source of the first setting, whether it would be offered for these sizes or not."""
    task = task_of(given)
    proposer = CpuAttention(LoadedTask(Path("nowhere"), task, reference, "", {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_attention, "_packing_pays", lambda case, query: True)
        found = proposer.look(task)
    assert found is not None
    return proposer.source(found, task, next(iter(proposer.first(found, task))))


def kernel_of(source: str) -> Callable[..., torch.Tensor]:
    names: dict[str, Any] = {}
    exec(compile(source, "candidate", "exec"), names)
    made: Callable[..., torch.Tensor] = names["kernel"]
    return made


def check(
    reference: Reference, given: dict[str, torch.Tensor], change: Callable[[str], str] = lambda source: source
) -> torch.Tensor:
    """Hold a candidate to torch's own error against an fp64 run, and to torch's layout; return what it gives."""
    ours = kernel_of(change(written(reference, given)))(*given.values())
    (theirs,) = reference(*given.values())
    (exact,) = reference(*(t.double() if t.is_floating_point() else t for t in given.values()))
    assert ours.stride() == theirs.stride()
    assert ours.dtype == theirs.dtype
    our_error, their_error = (float((o.double() - exact).norm()) for o in (ours, theirs))
    size = float(exact.norm())
    assert our_error <= 1.5 * their_error + 0.25 * torch.finfo(ours.dtype).eps * size, (our_error, their_error, size)
    return ours


HALVES_TOO = [torch.float32, torch.bfloat16, torch.float16]
SIZES = [(128, 128, 32), (77, 65, 64), (1, 5, 16), (33, 40, 80), (50, 600, 128), (7, 9, 13)]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", HALVES_TOO)
@pytest.mark.parametrize(("queries", "keys", "depth"), SIZES)
def test_it_is_as_exact_as_torch_at_any_length_and_head_size(
    queries: int, keys: int, depth: int, dtype: torch.dtype
) -> None:
    check(attention(), heads(queries, keys, depth, dtype))


@pytest.mark.parametrize("dtype", HALVES_TOO)
@pytest.mark.parametrize("kind", ["bool", "padding", "strided", "numbers", "numbers by key", "two-dimensional"])
def test_it_takes_masks_of_every_kind(kind: str, dtype: torch.dtype) -> None:
    given = heads(20, 37, 32, dtype)
    if kind in ("bool", "strided"):
        mask = torch.rand(2, 3, 20, 37) > 0.4 if kind == "bool" else (torch.rand(2, 1, 37, 20) > 0.4).transpose(2, 3)
        mask[..., 0] = True
    elif kind == "padding":
        mask = (torch.arange(37) < 30).expand(2, 1, 20, 37)
    else:
        shape = {"numbers": (2, 1, 20, 37), "numbers by key": (2, 1, 1, 37), "two-dimensional": (20, 37)}[kind]
        mask = torch.randn(shape).to(dtype)
    check(masked, {**given, "mask": mask})


def test_a_mask_of_fp32_may_be_added_to_scores_of_bf16() -> None:
    check(masked, {**heads(20, 37, 32, torch.bfloat16), "mask": torch.randn(2, 1, 20, 37)})


@pytest.mark.parametrize("dtype", HALVES_TOO)
def test_a_row_that_may_see_nothing_is_zero_as_in_torch(dtype: torch.dtype) -> None:
    mask = torch.ones(2, 1, 20, 37, dtype=torch.bool)
    mask[:, :, 3] = False
    ours = check(masked, {**heads(20, 37, 32, dtype), "mask": mask})
    assert not ours[:, :, 3].any()
    numbers = torch.zeros(2, 1, 20, 37, dtype=dtype).masked_fill(~mask, -torch.inf)
    assert not check(masked, {**heads(20, 37, 32, dtype), "mask": numbers})[:, :, 3].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_masked_by_the_least_number_is_the_mean_of_values_as_in_torch(dtype: torch.dtype) -> None:
    mask = torch.zeros(2, 1, 20, 37, dtype=dtype)
    mask[:, :, 3] = torch.finfo(dtype).min
    given = {**heads(20, 37, 32, dtype), "mask": mask}
    ours, (theirs,) = kernel_of(written(masked, given))(*given.values()), masked(*given.values())
    torch.testing.assert_close(ours[:, :, 3], theirs[:, :, 3])


@pytest.mark.parametrize("dtype", HALVES_TOO)
@pytest.mark.parametrize(("queries", "keys"), [(40, 40), (70, 30), (30, 700)])
def test_causal_attention_and_its_scale_are_taken_from_the_reference(
    queries: int, keys: int, dtype: torch.dtype
) -> None:
    check(attention(causal=True, scale=0.3), heads(queries, keys, 32, dtype))


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_a_scale_need_not_be_positive(scale: float) -> None:
    check(attention(scale=scale), heads(20, 37, 32, torch.float32))


@pytest.mark.parametrize("dtype", HALVES_TOO)
def test_key_heads_may_be_shared_by_query_heads(dtype: torch.dtype) -> None:
    given = {n: torch.randn(2, 9, 6 if n == "q" else 2, 32).to(dtype).transpose(1, 2) for n in ("q", "k", "v")}
    check(attention(grouped=True), given)


@pytest.mark.parametrize("names", ["kv", "q", "v"])
def test_one_batch_or_one_head_serves_all_others(names: str) -> None:
    given = heads(9, 12, 32, torch.bfloat16)
    check(attention(), given | {name: given[name][:1] for name in names})
    check(attention(), given | {name: given[name][:, :1] for name in names})


def test_the_layout_of_the_result_is_torch_s_fused_or_not() -> None:
    given = heads(9, 12, 32, torch.bfloat16)
    check(attention(), {n: t.contiguous() for n, t in given.items()})
    check(attention(), {n: torch.cat([t, t], -1)[..., :32] for n, t in given.items()})
    check(attention(), {n: t.transpose(2, 3).contiguous().transpose(2, 3) for n, t in given.items()})
    check(attention(), given | {"v": torch.randn(2, 3, 12, 15).bfloat16()})


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0)])
def test_nothing_to_ask_or_to_look_at_is_an_answer_too(queries: int, keys: int) -> None:
    given = heads(queries, keys, 32, torch.float32)
    ours, (theirs,) = kernel_of(written(attention(), given))(*given.values()), attention()(*given.values())
    assert ours.shape == theirs.shape
    assert not ours.any()


def test_a_key_that_outweighs_all_others_is_given_back_as_it_is() -> None:
    given = {n: t.contiguous() for n, t in heads(20, 37, 32, torch.bfloat16).items()}
    given["k"][:, :, 1:] = 0
    given["q"], given["k"][:, :, 0] = given["q"].abs() * 1e4 + 1, 9.7
    ours = kernel_of(written(attention(), given))(*given.values())
    assert torch.equal(ours, given["v"][:, :, :1].expand_as(ours))


def test_nan_stays_in_its_own_row() -> None:
    given = heads(20, 37, 32, torch.float32)
    given["q"][0, 0, 3, 5] = torch.nan
    ours = kernel_of(written(attention(), given))(*given.values())
    assert ours[0, 0, 3].isnan().all()
    assert ours.isnan().sum() == 32


@pytest.mark.parametrize("march", OLDER)
@pytest.mark.parametrize("dtype", HALVES_TOO)
def test_the_same_source_serves_a_cpu_with_fewer_instructions(
    march: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = tuple(f"-march={march}" if flag == "-march=native" else flag for flag in native.DEFAULT_FLAGS)
    build = native.compile_cpp
    monkeypatch.setattr(native, "compile_cpp", lambda source: build(source, flags=flags))
    mask = torch.rand(2, 3, 20, 37) > 0.4
    mask[..., 0] = True
    check(masked, {**heads(20, 37, 32, dtype), "mask": mask})
    check(attention(causal=True), heads(33, 40, 20, dtype))


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Yield what makes a candidate for tile registers run here: on a CPU without them, they are simulated."""
    if "amx_bf16" in cpu_flags():
        yield lambda source: source
        return
    monkeypatch.setattr(cpu_attention, "cpu_flags", lambda: frozenset({"amx_bf16"}))

    def simulated(source: str) -> str:
        assert "_tile_dpbf16ps" in source
        source = source.replace("syscall(SYS_arch_prctl, 0x1023, 18)", "0")
        return source.replace("// The tile registers of a CPU", SIMULATED + "// The tile registers of a CPU", 1)

    yield simulated


@pairs_of_bf16
@pytest.mark.parametrize(("queries", "keys", "depth"), SIZES)
def test_through_tile_registers_it_is_as_exact(
    queries: int, keys: int, depth: int, tiles: Callable[[str], str]
) -> None:
    check(attention(), heads(queries, keys, depth, torch.bfloat16), tiles)
    check(attention(causal=True), heads(queries, keys, depth, torch.bfloat16), tiles)


@pairs_of_bf16
def test_through_tile_registers_it_takes_masks(tiles: Callable[[str], str]) -> None:
    mask = torch.rand(2, 3, 20, 37) > 0.4
    mask[..., 0] = True
    check(masked, {**heads(20, 37, 32, torch.bfloat16), "mask": mask}, tiles)
    check(masked, {**heads(20, 37, 32, torch.bfloat16), "mask": torch.randn(2, 1, 20, 37)}, tiles)


def test_tiles_come_first_where_the_cpu_has_them_and_vectors_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "cpu_flags", lambda: frozenset({"amx_bf16"}))
    task = task_of(heads(8, 8, 32, torch.bfloat16))
    proposer = CpuAttention(LoadedTask(Path("nowhere"), task, attention(), "", {}))
    first = proposer.propose(task, [])
    assert first is not None
    assert first.knobs["product"] == "tiles"
    second = proposer.propose(task, [rejected(first)])
    assert second is not None
    assert second.knobs["product"] == "vectors"


def rejected(made: Candidate) -> Attempt:
    return Attempt(
        1, "t", "f" * 16, made.hash, made.parent, made.proposer, made.knobs, 0.0, 1.0, None, None, False, {}
    )  # fmt: skip


def test_what_is_no_attention_of_four_dimensions_on_a_cpu_is_left_to_others() -> None:
    given = heads(8, 8, 32, torch.bfloat16)

    def more(q: Any, k: Any, v: Any) -> tuple[torch.Tensor, ...]:
        return (F.scaled_dot_product_attention(q, k, v) * 2,)

    def dropping(q: Any, k: Any, v: Any) -> tuple[torch.Tensor, ...]:
        return (F.scaled_dot_product_attention(q, k, v, dropout_p=0.1),)

    assert candidate(more, given) is None
    assert candidate(dropping, given) is None
    assert candidate(attention(), given, "cuda") is None
    assert candidate(attention(), {n: t.double() for n, t in given.items()}) is None
    assert candidate(attention(), {n: t[0] for n, t in given.items()}) is None
    assert candidate(masked, {**given, "mask": torch.ones(3, 8, 8, dtype=torch.bool)}) is None


def test_fp32_is_offered_only_where_rows_pay_for_packing_a_head() -> None:
    assert candidate(attention(), heads(1, 128, 64, torch.bfloat16)) is not None
    assert candidate(attention(), heads(1, 128, 64, torch.float32)) is None
    assert candidate(attention(), heads(16, 128, 64, torch.float32)) is not None
    assert candidate(attention(), heads(16, 128, 512, torch.float32)) is None


@pytest.mark.parametrize(("keys", "settings"), [(512, 1), (513, 4)])
def test_knobs_are_turned_only_where_keys_are_many(keys: int, settings: int) -> None:
    task = task_of(heads(32, keys, 64, torch.float32))
    proposer = CpuAttention(LoadedTask(Path("nowhere"), task, attention(), "", {}))
    history: list[Attempt] = []
    while made := proposer.propose(task, history):
        verdict = Verdict(True, None, None, (), (), None, made.hash, "none", {})
        history.append(replace(rejected(made), verdict=verdict, median_us=100.0 + len(history)))
    assert len(history) == settings
