from __future__ import annotations

import ctypes
import gc
import logging

import pytest
import torch
from torch import nn

from hotswap.integrator.domain_guard import laid_out, outside
from hotswap.integrator.kernel_site import KernelSite
from hotswap.integrator.kernel_source import load_kernel
from hotswap.integrator.packed_weights import PackedWeights
from hotswap.models.errors import CandidateRejected
from hotswap.optimizer.winner import Domain, InputDomain, Winner

SCALE = "def kernel(x, w):\n    return x * w\n"


def domain(layout: str = "any", low: int = 1, high: int = 64) -> Domain:
    return Domain(
        (InputDomain("float32", 2, layout, "activation"), InputDomain("torch.float32", 1, "any", "weight")),
        (((0, 1), (1, 0)),),
        ((low, high),),
        ((0, 0, 3),),
        "cpu",
        1,
    )


def site(source: str = SCALE, where: Domain | None = None) -> KernelSite:
    winner = Winner("scale", "f" * 16, "kernel", "hand", source, where or domain(), None, "prepare" in source, 1, "")
    return KernelSite(winner, lambda x, w: (x * w,))


def inputs(width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, width), torch.randn(width)


@pytest.mark.parametrize(
    ("x", "w", "reason"),
    [
        (torch.ones(3, 8), torch.ones(8), None),
        (torch.ones(3, 8).double(), torch.ones(8), "input 0: dtype float64, expected float32"),
        (torch.ones(3, 8, 1), torch.ones(8), "input 0: rank 3, expected 2"),
        (torch.ones(3, 8), torch.ones(8, device="meta"), "device meta, expected cpu"),
        (torch.ones(3, 8), torch.ones(1), "sizes differ at input 0 dim 1, input 1 dim 0, expected equal"),
        (torch.ones(3, 65), torch.ones(65), "size at input 0 dim 1 not in 1 to 64"),
        (torch.ones(3, 0), torch.ones(0), "size at input 0 dim 1 not in 1 to 64"),
        (torch.ones(4, 8), torch.ones(8), "size at input 0 dim 0 not 3"),
        (torch.ones(3, 8).to_sparse(), torch.ones(8), "input 0: layout torch.sparse_coo, expected strided"),
    ],
)
def test_the_guard_says_what_lies_outside_the_domain(x: torch.Tensor, w: torch.Tensor, reason: str | None) -> None:
    assert outside(domain(), (x, w)) == reason


def test_the_guard_knows_the_layouts_a_domain_can_name() -> None:
    dense, swapped = torch.ones(2, 3, 4), torch.ones(3, 2, 4).transpose(0, 1)
    assert all(laid_out(t.shape, t.stride(), "any") for t in (dense, swapped))
    assert laid_out(dense.shape, dense.stride(), "0,1,2")
    assert not laid_out(swapped.shape, swapped.stride(), "0,1,2")
    assert laid_out(swapped.shape, swapped.stride(), "1,0,2")
    sliced = torch.ones(2, 3, 8)[..., ::2]
    assert laid_out(sliced.shape, sliced.stride(), "0,1,2")
    assert not laid_out(sliced.shape, sliced.stride(), "contiguous")
    single = torch.ones(4, 1, 3).transpose(0, 1)
    assert laid_out(single.shape, single.stride(), "0,1,2")


def test_an_input_the_kernel_needs_contiguous_goes_to_the_original_ops_when_it_is_not() -> None:
    made = site("CONSTRAINTS = {'contiguous': ['x']}\n" + SCALE)
    x, w = torch.randn(8, 3).t(), torch.randn(8)
    torch.testing.assert_close(made((x, w))[0], x * w, rtol=0, atol=0)
    assert made.engagement().fallback_reasons == {"input 0: not contiguous, which the kernel needs": 1}
    made((x.contiguous(), w))
    assert made.engagement().kernel_calls == 1


def test_inputs_that_need_gradients_get_them() -> None:
    made = site()
    x, w = inputs()
    (out,) = made((x.requires_grad_(), w))
    out.sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(x.grad, w.expand(3, 8), rtol=0, atol=0)
    assert made.engagement().fallback_reasons == {"an input requires grad": 1}


def test_a_kernel_that_raises_is_answered_for_by_the_original_ops_from_then_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = site("def kernel(x, w):\n    raise RuntimeError('no')\n")
    x, w = inputs()
    with caplog.at_level(logging.ERROR, logger="hotswap"):
        torch.testing.assert_close(made((x, w))[0], x * w, rtol=0, atol=0)
        made((x, w))
    assert made.engagement().fallback_reasons == {"kernel raised RuntimeError": 2}
    assert len([r for r in caplog.records if r.name.startswith("hotswap")]) == 1


def test_a_kernel_that_returns_its_input_is_not_believed() -> None:
    made = site("def kernel(x, w):\n    return x[:]\n")
    x, w = inputs()
    for _ in range(2):
        torch.testing.assert_close(made((x, w))[0], x * w, rtol=0, atol=0)
    assert made.engagement().fallback_reasons == {"kernel returned an alias of an input": 2}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def kernel(x, w)\n", "SyntaxError"),
        ("import nothing_of_that_name\n", "ModuleNotFoundError"),
        ("x = 1\n", r"no function kernel\(\*inputs\)"),
        ("def prepare(x, w): return w\n" + SCALE, "without STATIC_WEIGHTS"),
        ("CONSTRAINTS = {'contiguous': ['z']}\n" + SCALE, "'z', expected one of x, w"),
    ],
)
def test_a_source_that_is_no_kernel_is_refused_with_the_reason(source: str, message: str) -> None:
    with pytest.raises(CandidateRejected, match=message):
        load_kernel(source, "scale")


def test_one_text_is_executed_once() -> None:
    assert load_kernel(SCALE, "a") is load_kernel(SCALE, "b")


PACKS = """
STATIC_WEIGHTS = True
prepared = []

def prepare(x, w):
    prepared.append(1)
    return w.clone() * 1.0

def kernel(x, w, *, packed):
    return x * packed
"""


def test_packed_weights_are_made_once_and_again_when_a_weight_changes() -> None:
    made = site(PACKS)
    x = torch.randn(3, 8)
    w = nn.Parameter(torch.randn(8), requires_grad=False)

    def answers(changes: int) -> None:
        torch.testing.assert_close(made((x, w))[0], x * w, rtol=0, atol=0)
        made((x, w))
        assert made.repacked == changes

    answers(0)
    w.mul_(2)
    answers(1)
    w.data = torch.randn(8)
    answers(2)
    # Behind autograd's back: no version is bumped.
    ctypes.memset(w.data_ptr(), 0, 4)
    answers(3)
    w.data.copy_(torch.randn(8))
    answers(4)


def test_places_with_other_weights_have_their_own_packing() -> None:
    made = site(PACKS)
    x = torch.randn(3, 8)
    first, second = (nn.Parameter(torch.randn(8), requires_grad=False) for _ in range(2))
    for _ in range(2):
        for w in (first, second):
            torch.testing.assert_close(made((x, w))[0], x * w, rtol=0, atol=0)
    assert made.repacked == 0


def test_a_packing_goes_when_its_weights_do() -> None:
    packed = PackedWeights(lambda w: w.clone(), [0])
    w = torch.randn(8)
    packed.of((w,))
    assert len(packed) == 1
    del w
    gc.collect()
    assert len(packed) == 0


def test_strided_and_large_weights_are_sampled_within_their_memory() -> None:
    packed = PackedWeights(lambda w: w.clone(), [0])
    base = torch.zeros(100, 10)
    for w in (base.t(), base[::3, 1:4], base[5], torch.zeros(1), torch.zeros(0), torch.zeros(3, dtype=torch.bool)):
        torch.testing.assert_close(packed.of((w,)), w)
        packed.of((w,))
    assert packed.repacked == 0
