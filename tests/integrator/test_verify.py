"""Whole models under verification: what must fail fails, and the user's model is left as it was."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from hotswap.integrator.full_precision import call_wider
from hotswap.integrator.generation import Decoded, compare_tokens
from hotswap.integrator.results import Check
from hotswap.integrator.verify import bisect, verify
from hotswap.models.errors import ModelRaised
from hotswap.models.workload import Call


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor
    loss: torch.Tensor | None
    cache: Cache


class Cache:
    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys


class Reader(nn.Module):
    """Tokens and a mask to a tree of outputs, as language models are called. `spoil` stands for a swapped kernel."""

    calls: torch.Tensor

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.spoil: Callable[[Output], Output] = lambda output: output
        self.to(dtype)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Output:
        self.calls += 1
        weights = torch.softmax(attention_mask.to(self.head.weight.dtype).log(), -1)  # a row of padding alone is NaN
        hidden = self.norm(self.embed(input_ids)) * weights[..., None]
        return self.spoil(Output(self.head(hidden), hidden, None, Cache(hidden * 2)))


def _call(rows: int = 4, length: int = 8) -> Call:
    ids = torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(1))
    return Call(kwargs={"input_ids": ids, "attention_mask": torch.ones_like(ids)}, name="read")


def _swapping(model: Reader, spoil: Callable[[Output], Output]) -> Callable[[], AbstractContextManager[None]]:
    @contextlib.contextmanager
    def apply() -> Iterator[None]:
        was, model.spoil = model.spoil, spoil
        try:
            yield
        finally:
            model.spoil = was

    return apply


def _failed(checks: tuple[Check, ...]) -> list[str]:
    return [check.name for check in checks if not check.passed]


def test_an_honest_swap_passes_on_every_derived_input() -> None:
    model = Reader()
    checks = verify(model, _swapping(model, lambda output: output), [_call()])
    assert [check.name for check in checks] == [
        "read",
        "read: batch 2",
        "read: length 7",
        "read: length 4",
        "read: length 1",
        "read: padded right",
        "read: padded left",
    ]
    assert _failed(checks) == []
    assert checks[0].top1 == 1.0
    assert {leaf.path for leaf in checks[0].leaves} >= {"output.logits", "output.hidden", "output.cache.keys"}


def _spoil_second_leaf(output: Output) -> Output:
    return Output(output.logits, output.hidden * 1.001, output.loss, output.cache)


def _spoil_cache(output: Output) -> Output:
    return Output(output.logits, output.hidden, output.loss, Cache(output.cache.keys + 1e-3))


def _fill_none(output: Output) -> Output:
    return Output(output.logits, output.hidden, output.logits.sum(), output.cache)


def _spoil_last_token(output: Output) -> Output:
    if output.logits.shape[1] == 7:
        output.logits[0, -1, 0] += 0.01
    return output


@pytest.mark.parametrize("spoil", [_spoil_second_leaf, _spoil_cache, _fill_none])
def test_corrupting_any_leaf_but_the_first_fails_everywhere(spoil: Callable[[Output], Output]) -> None:
    model = Reader()
    checks = verify(model, _swapping(model, spoil), [_call()], derive=False)
    assert _failed(checks) == ["read"]


def test_the_failing_leaf_is_named_with_figures() -> None:
    model = Reader()
    (check,) = verify(model, _swapping(model, _spoil_second_leaf), [_call()], derive=False)
    assert check.detail.startswith("output.hidden: error 0.001 in norm exceeds")
    assert [leaf.passed for leaf in check.leaves] == [leaf.path != "output.hidden" for leaf in check.leaves]


def test_a_kernel_wrong_only_at_an_odd_length_fails_on_that_input_alone() -> None:
    model = Reader()
    assert _failed(verify(model, _swapping(model, _spoil_last_token), [_call()])) == ["read: length 7"]


def test_a_swap_that_raises_is_a_failed_check_and_not_an_exception() -> None:
    def explode(output: Output) -> Output:
        raise RuntimeError("bad kernel")

    model = Reader()
    (check,) = verify(model, _swapping(model, explode), [_call()], derive=False)
    assert not check.passed
    assert check.detail == "the patched model raised RuntimeError: bad kernel"


def test_a_model_that_refuses_its_own_example_is_the_users_error() -> None:
    with pytest.raises(ModelRaised, match="read: the unpatched model raised"):
        verify(Reader(), nullcontext, [Call(kwargs={"input_ids": torch.ones(1, 1)}, name="read")])


def test_nan_rows_of_padding_pass_unchanged_and_fail_when_masked_away() -> None:
    ids = torch.arange(8).reshape(2, 4)
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]])
    call = Call(kwargs={"input_ids": ids, "attention_mask": mask}, name="padded")
    model = Reader(torch.bfloat16)
    assert model(ids, mask).logits[1].isnan().all()
    assert _failed(verify(model, _swapping(model, lambda output: output), [call], derive=False)) == []

    def finite(output: Output) -> Output:
        return Output(output.logits.nan_to_num(), output.hidden, output.loss, output.cache)

    (check,) = verify(model, _swapping(model, finite), [call], derive=False)
    assert not check.passed
    assert "NaN in eager are not NaN" in check.detail


def test_bf16_differences_are_judged_by_an_fp32_run() -> None:
    """A harmless swap (fp32 inside, rounded once) and a harmful one differ from eager by similar amounts."""
    model = Reader(torch.bfloat16)

    def better(output: Output) -> Output:
        logits = nn.functional.linear(output.hidden.float(), model.head.weight.float(), model.head.bias.float())
        return Output(logits.bfloat16(), output.hidden, output.loss, output.cache)

    def worse(output: Output) -> Output:
        return Output(output.logits * 1.02, output.hidden, output.loss, output.cache)

    (kept,) = verify(model, _swapping(model, better), [_call()], derive=False)
    (lost,) = verify(model, _swapping(model, worse), [_call()], derive=False)
    assert kept.passed, kept.detail
    assert not lost.passed
    assert kept.kl is not None
    assert lost.kl is not None
    assert lost.kl > kept.kl
    assert "KL" in kept.detail
    assert "eager" in kept.detail


class Writer(nn.Module):
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor, seen: dict[str, torch.Tensor]) -> torch.Tensor:
        self.mean += x.mean(0)
        seen["last"] += x.sum()
        x.mul_(2)
        return x + self.mean


def test_inputs_and_buffers_the_model_writes_are_part_of_its_output_and_are_put_back() -> None:
    model, x, seen = Writer(), torch.ones(3, 4), {"last": torch.zeros(())}
    mean = model.mean
    (check,) = verify(model, nullcontext, [Call((x, seen))], derive=False)
    assert check.passed, check.detail
    assert [leaf.path for leaf in check.leaves] == ["output", "inputs[0][0]", "inputs[0][1].last", "buffers.mean"]
    assert x.eq(1).all()
    assert seen["last"] == 0
    assert model.mean is mean
    assert mean.eq(0).all()


def test_a_swap_that_forgets_to_write_an_input_fails() -> None:
    model = Writer()

    def forgets(x: torch.Tensor, seen: dict[str, torch.Tensor]) -> Any:
        return model(x.clone(), seen)

    call = Call((torch.ones(3, 4), {"last": torch.zeros(())}))
    (check,) = verify(model, lambda: nullcontext(forgets), [call], derive=False)
    assert not check.passed


class Undeepcopyable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the legacy form is the one that cannot be copied
            self.linear = nn.utils.weight_norm(nn.Linear(4, 4))
        self.cache: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.linear(x)
        if self.cache is None:
            self.cache = self.linear.weight * 2
        return hidden @ self.cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_cannot_be_deepcopied_is_verified_and_stays_untouched(dtype: torch.dtype) -> None:
    model = Undeepcopyable().to(dtype)
    x = torch.randn(8, 4, dtype=dtype)
    model(x)  # leaves a non-leaf tensor on the module
    before = {name: (id(p), p.data_ptr(), p._version) for name, p in model.named_parameters()}
    cache, weight = model.cache, model.linear.weight
    checks = verify(model, nullcontext, [Call((x,))])
    assert _failed(checks) == []
    assert all("no fp" not in check.detail for check in checks), checks[0].detail
    assert {name: (id(p), p.data_ptr(), p._version) for name, p in model.named_parameters()} == before
    assert model.cache is cache
    assert model.linear.weight is weight


def test_the_wider_run_is_the_same_model_in_fp32_hooks_and_inner_casts_included() -> None:
    model = Reader(torch.bfloat16)
    model.norm.register_forward_hook(lambda module, args, out: (out * 3).to(torch.bfloat16))
    kwargs: Mapping[str, Any] = _call().kwargs
    with torch.no_grad():
        wide = call_wider(model, lambda inner: inner(**kwargs), torch.float32)
        assert model.head.weight.dtype == torch.bfloat16
        expected = model.float()(**kwargs)
    # The hook's cast to bf16 is widened in the one and rounds in the other: 3x rounded at 2**-9.
    model.norm._forward_hooks.clear()
    model.norm.register_forward_hook(lambda module, args, out: out * 3)
    exact = model(**kwargs)
    assert wide.logits.dtype == torch.float32
    assert torch.equal(wide.logits, exact.logits)
    assert not torch.equal(expected.logits, exact.logits)


class OneDtype(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight.dtype != torch.bfloat16:
            raise TypeError("only bf16 here")
        return x * self.weight


def test_where_no_wider_run_is_possible_the_check_says_so_and_compares_with_eager() -> None:
    (check,) = verify(OneDtype(), nullcontext, [Call((torch.ones(2, 4).bfloat16(),))], derive=False)
    assert check.passed
    assert check.detail.endswith("no fp32 run (TypeError: only bf16 here), compared with eager alone")


class Switches:
    """A patch of which some tasks are wrong."""

    def __init__(self, wrong: set[frozenset[str]]) -> None:
        self.wrong, self.on = wrong, {"a": True, "b": True, "c": True}

    def enable(self, fingerprint: str, on: bool) -> None:
        self.on[fingerprint] = on

    def passes(self) -> bool:
        active = {name for name, on in self.on.items() if on}
        return not any(group <= active for group in self.wrong)


def test_bisection_names_the_wrong_tasks_and_leaves_the_others_on() -> None:
    patch = Switches({frozenset("b")})
    assert bisect(patch, patch.passes, ["a", "b", "c"]).culprits == ("b",)
    assert patch.on == {"a": True, "b": False, "c": True}


def test_bisection_finds_a_pair_that_is_only_wrong_together() -> None:
    patch = Switches({frozenset("ac")})
    assert bisect(patch, patch.passes, ["a", "b", "c"]).culprits == ("c",)


def test_bisection_blames_no_task_when_the_check_fails_without_any() -> None:
    patch = Switches({frozenset()})
    found = bisect(patch, patch.passes, ["a", "b", "c"])
    assert (found.culprits, found.plain_passes) == ((), False)


def _decoded(tokens: list[int], logits: list[list[float]]) -> Decoded:
    return Decoded(torch.tensor([[9, 9, *tokens]]), tuple(torch.tensor([step]) for step in logits))


def test_a_token_may_differ_only_where_eagers_margin_is_below_its_own_error() -> None:
    eager = _decoded([1, 2], [[0.0, 1.0, 0.0], [0.0, 1.0, 1.01]])
    swapped = _decoded([1, 1], [[0.0, 1.0, 0.0], [0.0, 1.01, 1.0]])
    near = _decoded([1, 2], [[0.0, 1.0, 0.0], [0.0, 1.0, 1.03]])
    exact = _decoded([1, 2], [[0.0, 1.0, 0.0], [0.0, 1.0, 1.01]])
    assert compare_tokens("g", eager, swapped, near, exact=False).passed
    assert not compare_tokens("g", eager, swapped, exact, exact=False).passed
    assert not compare_tokens("g", eager, swapped, near, exact=True).passed
    assert "row 0 diverges at new token 2: 2 became 1" in compare_tokens("g", eager, swapped, near, exact=False).detail


@dataclass
class Generated:
    sequences: torch.Tensor
    logits: tuple[torch.Tensor, ...]


class Speaker(Reader):
    """Generates in the way of transformers, as far as verification relies on it."""

    def can_generate(self) -> bool:
        return True

    def generate(self, input_ids: torch.Tensor, max_new_tokens: int, **_: Any) -> Generated:
        steps = []
        for _step in range(max_new_tokens):
            output: Output = self(input_ids, torch.ones_like(input_ids))
            steps.append(output.logits[:, -1])
            input_ids = torch.cat([input_ids, steps[-1].argmax(-1, keepdim=True)], 1)
        return Generated(input_ids, tuple(steps))


def _spoil_later(output: Output) -> Output:
    """Wrong at lengths that only generation reaches."""
    return output if output.logits.shape[1] < 10 else Output(-output.logits, output.hidden, None, output.cache)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_tokens_of_a_generator_are_compared(dtype: torch.dtype) -> None:
    model = Speaker(dtype)
    *_, same = verify(model, _swapping(model, lambda output: output), [_call()], derive=False, steps=4)
    assert (same.name, same.passed, same.top1) == ("read: generate", True, 1.0)
    forward, tokens = verify(model, _swapping(model, _spoil_later), [_call()], derive=False, steps=4)
    assert forward.passed
    assert not tokens.passed
    assert "diverges at new token 3" in tokens.detail
    assert model.calls == 0


def test_a_patched_generate_that_raises_fails_its_check() -> None:
    def explode(output: Output) -> Output:
        if output.logits.shape[1] > 8:
            raise RuntimeError("bad kernel")
        return output

    model = Speaker()
    forward, tokens = verify(model, _swapping(model, explode), [_call()], derive=False, steps=2)
    assert forward.passed
    assert not tokens.passed
    assert "generate raised where eager's did not" in tokens.detail
