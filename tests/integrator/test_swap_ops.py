from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from hotswap.integrator.kernel_site import KernelSite
from hotswap.integrator.op_check import op_problem
from hotswap.integrator.ops import SwapOp, add_site, op_name, swap_op
from hotswap.optimizer.winner import Domain, InputDomain, Winner

KERNEL = "import torch\n\ndef kernel(x, w):\n    return torch.tanh(x) * w\n"


def make(source: str = KERNEL, reference: Callable[..., tuple[torch.Tensor, ...]] | None = None) -> KernelSite:
    where = Domain(
        (InputDomain("float32", 2, "any", "activation"), InputDomain("float32", 1, "any", "weight")),
        (((0, 0),), ((0, 1), (1, 0))),
        ((1, 64), (4, 64)),
        (),
        "cpu",
        1,
    )
    winner = Winner("tanh-mul", "0123456789abcdef", "kernel", "hand", source, where, None, False, 1, "")
    return KernelSite(winner, reference or (lambda x, w: (torch.tanh(x) * w,)))


def registered(site: KernelSite) -> tuple[SwapOp, int]:
    return swap_op(site, 2, 1), add_site(site)


def example() -> list[torch.Tensor]:
    return [torch.randn(3, 8), torch.randn(8)]


def test_an_honest_op_passes_opcheck_and_its_counters_do_not_move() -> None:
    site = make()
    assert op_problem(site, swap_op(site, 2, 1), example()) is None
    assert site.engagement().kernel_calls == 0


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        ("torch.tanh(x).double() * w", "dtype"),
        ("(torch.tanh(x) * w)[:, :2].contiguous()", "shape"),
        ("(torch.tanh(x) * w).t().contiguous().t()", "stride"),
    ],
)
def test_a_kernel_whose_outputs_are_not_laid_out_as_the_references_is_a_reason(kernel: str, what: str) -> None:
    site = make(f"import torch\n\ndef kernel(x, w):\n    return {kernel}\n")
    reason = op_problem(site, swap_op(site, 2, 1), example())
    assert reason is not None, what
    assert reason.startswith("opcheck: ")


def test_a_kernel_that_writes_to_its_input_is_a_reason() -> None:
    site = make("import torch\n\ndef kernel(x, w):\n    x.add_(1)\n    return torch.tanh(x) * w\n")
    reason = op_problem(site, swap_op(site, 2, 1), example())
    assert reason is not None
    assert "opcheck" in reason


def test_a_kernel_that_does_not_run_where_it_was_verified_is_a_reason() -> None:
    site = make("def kernel(x, w):\n    raise RuntimeError('no')\n")
    reason = op_problem(site, swap_op(site, 2, 1), example())
    assert reason == "opcheck: the kernel did not run (kernel raised RuntimeError)"


def test_examples_outside_the_domain_are_checked_inside_it() -> None:
    site = make()
    assert op_problem(site, swap_op(site, 2, 1), [torch.randn(500, 2), torch.randn(2)]) is None


def test_fake_examples_with_symbolic_sizes_will_do() -> None:
    site = make()
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        fakes = [mode.from_tensor(t) for t in example()]
    assert op_problem(site, swap_op(site, 2, 1), fakes) is None


def test_names_tell_regions_and_sources_apart() -> None:
    site = make()
    other_source = make(KERNEL + "# another text\n")
    other_region = KernelSite(dataclasses.replace(site.winner, fingerprint="f" * 16), site.reference)
    assert len({op_name(s) for s in (site, other_source, other_region, make())}) == 3
    assert swap_op(site, 2, 1) is swap_op(make(), 2, 1)


def test_two_sites_share_the_op_and_count_apart() -> None:
    first, second = make(), make()
    (op, mine), (same_op, theirs) = registered(first), registered(second)
    assert op is same_op
    with torch.no_grad():
        op.decide(mine, *example())
        op.decide(mine, *example())
        op.decide(theirs, *example())
    assert (first.calls, second.calls) == (2, 1)


def test_an_op_gives_gradients_in_eager_and_through_aot_autograd() -> None:
    site = make()
    op, number = registered(site)
    x, w = example()
    leaf = x.clone().requires_grad_()
    want = torch.autograd.grad((torch.tanh(leaf) * w).sum(), leaf)
    compiled = torch.compile(lambda x, w: op.decide(number, x, w), backend="aot_eager", fullgraph=True)
    for run in (lambda x, w: op.decide(number, x, w), compiled):
        x = x.detach().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(run(x, w).sum(), x), want)  # type: ignore[no-untyped-call]
    assert set(site.fallbacks) == {"an input requires grad", "an input requires grad (while traced)"}
    assert site.fallbacks["an input requires grad"] == 1


def test_a_trace_without_gradients_keeps_the_kernel_at_every_length() -> None:
    site = make()
    op, number = registered(site)
    compiled = torch.compile(
        lambda x, w: op.decide(number, x, w) + 1, backend="aot_eager", dynamic=True, fullgraph=True
    )
    with torch.no_grad():
        for rows in (3, 5, 9):
            x, w = torch.randn(rows, 8), torch.randn(8)
            torch.testing.assert_close(compiled(x, w), torch.tanh(x) * w + 1)
    assert site.calls == 3
    assert not site.fallbacks


def test_a_fake_output_never_aliases_what_the_reference_passes_through() -> None:
    site = make(reference=lambda x, w: (x,))
    op, number = registered(site)
    with FakeTensorMode() as mode:
        x, w = (mode.from_tensor(t) for t in example())
        out = op.kernel(number, x, w)
    assert out.shape == x.shape
    assert out.untyped_storage()._cdata != x.untyped_storage()._cdata


def test_functorch_transforms_differentiate_the_original_ops() -> None:
    site = make()
    op, number = registered(site)
    x, w = example()
    got = torch.func.grad(lambda x: op.decide(number, x, w).sum())(x)
    torch.testing.assert_close(got, (1 - torch.tanh(x) ** 2) * w)
    assert site.calls == 0
