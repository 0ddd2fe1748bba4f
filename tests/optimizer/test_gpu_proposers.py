"""Anchor templates for a GPU, without one: Triton's interpreter, compiled for sm_90, library calls as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from hotswap.extractor.load_task import LoadedTask, load_function
from hotswap.extractor.task import Role, ShapeCase, Task, TensorSpec
from hotswap.optimizer.attempt import Attempt, Knob
from hotswap.optimizer.candidate import Proposer
from hotswap.optimizer.codegen.triton_compile import Target, Tensor, compile_one
from hotswap.optimizer.codegen.triton_interpreter import Interpreter
from hotswap.optimizer.proposers.apart import Apart, joined
from hotswap.optimizer.proposers.attention_choice import AttentionChoice
from hotswap.optimizer.proposers.cross_entropy import CrossEntropy
from hotswap.optimizer.proposers.gemv import Gemv
from hotswap.optimizer.proposers.kernel_file import next_candidate, rendered
from hotswap.optimizer.proposers.linear_cross_entropy import LinearCrossEntropy
from hotswap.optimizer.proposers.matmul_epilogue import MatmulEpilogue
from hotswap.optimizer.proposers.merged_linears import MergedLinears
from hotswap.optimizer.proposers.merged_matmul import MergedMatmul
from hotswap.optimizer.proposers.padded_linear import PaddedLinear
from hotswap.optimizer.proposers.wide_softmax import WideSoftmax
from hotswap.optimizer.verdict import Verdict

Reference = Callable[..., tuple[torch.Tensor, ...]]


@dataclasses.dataclass(frozen=True)
class Given(LoadedTask):
    """A task on a CUDA device whose example inputs are CPU tensors: proposers only look at them."""

    given: tuple[torch.Tensor, ...] = ()

    def inputs(self, case_index: int = 0, generator: torch.Generator | None = None) -> list[torch.Tensor]:
        return list(self.given)


def loaded(reference: Reference, tensors: dict[str, torch.Tensor], weights: tuple[str, ...] = ()) -> Given:
    def role(name: str) -> Role:
        return "weight" if name in weights else "activation"

    specs = tuple(
        TensorSpec(n, tuple(t.shape), t.stride(), 0, str(t.dtype).removeprefix("torch."), role(n))
        for n, t in tensors.items()
    )
    case = ShapeCase("s0", specs, 1, 1.0, 100.0)
    outputs = len(reference(*tensors.values()))
    task = Task("t", "f" * 16, "anchor", "cuda:0", (), tuple(tensors), outputs, (case,), (), 100.0, 50.0, 0.5, 1.3)
    return Given(Path("nowhere"), task, reference, "", {}, tuple(tensors.values()))


def source_of(proposer: Proposer, task: Task) -> str:
    """Return the first setting's source, without the launch by dependency, which the interpreter does not know."""
    candidate = proposer.propose(task, [])
    assert candidate is not None
    return candidate.source.replace("EARLY = True", "EARLY = False")


def attempt(source_hash: str, proposer: str, knobs: dict[str, Any], us: float | None) -> Attempt:
    verdict = Verdict(us is not None, None, None if us is not None else "no", (), (), None, source_hash, "none", {})
    return Attempt(0, "t", "f", source_hash, None, proposer, knobs, 0.0, 1.0, verdict, us, us is not None, {})


def namespace(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(source, "candidate", "exec"), names)
    return names


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    child = Interpreter()
    yield child
    child.close()


def loss(reduction: str, ignore: int = -100, *, widen: bool = True) -> Reference:
    def reference(logits: Any, target: Any) -> tuple[torch.Tensor, ...]:
        flat = logits.view(-1, logits.shape[-1])
        flat = flat.float() if widen else flat
        return (F.cross_entropy(flat, target.view(-1), reduction=reduction, ignore_index=ignore),)

    return reference


def tokens(shape: tuple[int, ...], dtype: torch.dtype = torch.float16) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    target = torch.randint(0, shape[-1], shape[:-1])
    target.view(-1)[0] = -100
    return {"logits": (3 * torch.randn(shape)).to(dtype), "target": target}


@pytest.mark.parametrize("width", [13, 1003, 5000, 8192])
@pytest.mark.parametrize("parts", [1, 4])
def test_cross_entropy_is_right_at_widths_that_are_no_whole_vectors(
    interpreter: Interpreter, width: int, parts: int
) -> None:
    given = tokens((1, 4, width))
    task = loaded(loss("mean"), given)
    source = source_of(CrossEntropy(task), task.task).replace("PARTS = 4", f"PARTS = {parts}")
    assert f"\nPARTS = {parts}\n" in source
    (got,) = interpreter.run(source, list(given.values()))
    (exact,) = loss("mean", widen=False)(given["logits"].double(), given["target"])
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), exact, rtol=3e-6, atol=0)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_cross_entropy_follows_reduction_ignored_index_and_dtype(interpreter: Interpreter, reduction: str) -> None:
    given = tokens((5, 131), torch.bfloat16)
    given["target"][2] = 7
    reference = loss(reduction, ignore=7, widen=False)
    given["target"][0] = 3
    task = loaded(reference, given)
    (got,) = interpreter.run(source_of(CrossEntropy(task), task.task), list(given.values()))
    (exact,) = reference(given["logits"].double(), given["target"])
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-30)


def test_a_loss_of_rows_that_are_all_ignored_is_nan_and_of_an_infinite_row_as_in_torch(
    interpreter: Interpreter,
) -> None:
    given = tokens((3, 70))
    given["target"][:] = -100
    task = loaded(loss("mean"), given)
    source = source_of(CrossEntropy(task), task.task)
    assert interpreter.run(source, list(given.values()))[0].isnan()
    each = loaded(loss("none"), given)
    given["target"][:] = 5
    given["logits"][0] = -float("inf")
    given["logits"][1, :60] = -float("inf")
    (got,) = interpreter.run(source_of(CrossEntropy(each), each.task), list(given.values()))
    torch.testing.assert_close(got, loss("none")(*given.values())[0], equal_nan=True, rtol=1e-5, atol=1e-6)


def test_cross_entropy_reads_rows_that_are_strided_and_start_anywhere(interpreter: Interpreter) -> None:
    given = tokens((4, 200))
    given["logits"] = given["logits"][:, 3:180]
    given["target"] = given["target"].clamp(max=170)
    task = loaded(lambda x, t: (F.cross_entropy(x, t),), given)
    (got,) = interpreter.run(source_of(CrossEntropy(task), task.task), list(given.values()))
    (exact,) = (F.cross_entropy(given["logits"].double(), given["target"]),)
    torch.testing.assert_close(got.double(), exact, rtol=2**-11, atol=0)


@pytest.mark.parametrize(
    "reference",
    [
        lambda x, t: (F.cross_entropy(x, t, label_smoothing=0.1),),
        lambda x, t: (F.cross_entropy(x * 2, t),),
        lambda x, t: (F.cross_entropy(x, t) * 2,),
        lambda x, t: (F.cross_entropy(x, t), x.sum()),
        lambda x, t: (F.cross_entropy(x, t, weight=torch.ones(8)),),
    ],
)
def test_what_is_more_than_a_plain_cross_entropy_is_left_to_others(reference: Reference) -> None:
    task = loaded(reference, {"x": torch.randn(4, 8), "t": torch.randint(0, 8, (4,))})
    assert CrossEntropy(task).propose(task.task, []) is None


def test_cross_entropy_on_a_cpu_is_left_to_others() -> None:
    task = loaded(loss("mean"), tokens((4, 8)))
    assert CrossEntropy(task).propose(dataclasses.replace(task.task, device="cpu"), []) is None


def head_loss(reduction: str, *, widen: bool = True) -> Reference:
    def reference(x: Any, weight: Any, target: Any, bias: Any = None) -> tuple[torch.Tensor, ...]:
        logits = F.linear(x, weight, bias).view(-1, weight.shape[0])
        logits = logits.float() if widen else logits
        return (F.cross_entropy(logits, target.view(-1), reduction=reduction),)

    return reference


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(("bias", "inner", "width"), [(True, 64, 301), (False, 37, 130)])
def test_cross_entropy_of_a_linear_is_right_without_its_outputs(
    interpreter: Interpreter, reduction: str, bias: bool, inner: int, width: int
) -> None:
    torch.manual_seed(0)
    target = torch.randint(0, width, (2, 35))
    target[0, 3], target[1, 7] = -100, width - 1
    given = {"x": torch.randn(2, 35, inner).half(), "weight": torch.randn(width, inner).half(), "target": target}
    given |= {"bias": torch.randn(width).half()} if bias else {}
    task = loaded(head_loss(reduction), given, ("weight", "bias"))
    source = source_of(LinearCrossEntropy(task), task.task).replace("ROWS = 128", "ROWS = 32").replace("= 256", "= 64")
    (got,) = interpreter.run(source, list(given.values()))
    wide = {n: t.double() if t.is_floating_point() else t for n, t in given.items()}
    (exact,) = head_loss(reduction, widen=False)(*wide.values())
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), exact, rtol=3e-6, atol=0)


def test_cross_entropy_of_more_than_a_linear_is_left_to_others() -> None:
    given = {"x": torch.randn(6, 16).half(), "weight": torch.randn(8, 16).half(), "target": torch.randint(0, 8, (6,))}
    for reference in (
        lambda x, w, t: (F.cross_entropy(F.linear(x, w).float() * 2, t),),
        lambda x, w, t: (F.cross_entropy(F.linear(x, w).float(), t), F.linear(x, w)),
    ):
        task = loaded(reference, given, ("weight",))
        assert LinearCrossEntropy(task).propose(task.task, []) is None


@pytest.mark.parametrize(("width", "held"), [(8192, 0), (8203, 0), (8203, 3), (8193, 8), (8192, 8), (10240, 2)])
@pytest.mark.parametrize("log", [True, False])
def test_a_wide_softmax_is_right_whatever_the_alignment_of_its_rows_and_however_much_of_them_is_held(
    interpreter: Interpreter, width: int, held: int, log: bool
) -> None:
    torch.manual_seed(0)
    function = F.log_softmax if log else F.softmax
    x = torch.randn(3, width).half() * 4
    x[1, 5:] = -float("inf")
    task = loaded(lambda x: (function(x.float(), dim=-1).to(x.dtype),), {"x": x})
    source = source_of(WideSoftmax(task), task.task).replace("WARPS = 16", "WARPS = 4")
    source = source.replace("HELD = 8", f"HELD = {held}")
    assert f"\nHELD = {held}\n" in source
    (got,) = interpreter.run(source, [x])
    torch.testing.assert_close(got.double(), function(x.double(), dim=-1), rtol=2**-10, atol=2**-24)


@pytest.mark.parametrize("line", [16, 128])
@pytest.mark.parametrize("width", [8192, 8200, 8203])
def test_rows_are_right_from_whatever_border_they_are_peeled_to(
    interpreter: Interpreter, width: int, line: int
) -> None:
    torch.manual_seed(0)
    x, target = torch.randn(3, width).half() * 4, torch.tensor([0, width - 1, 7])
    x[:, :3], x[:, -3:] = 20, 20  # most of the sum is in what is peeled off
    softmax = loaded(lambda x: (x.softmax(-1),), {"x": x})
    source = source_of(WideSoftmax(softmax), softmax.task).replace("LINE = 128", f"LINE = {line}")
    assert f"\nLINE = {line}\n" in source
    (got,) = interpreter.run(source, [x])
    torch.testing.assert_close(got.double(), x.double().softmax(-1), rtol=2**-10, atol=2**-24)
    task = loaded(loss("mean"), {"logits": x, "target": target})
    source = source_of(CrossEntropy(task), task.task).replace("LINE = 128", f"LINE = {line}")
    assert f"\nLINE = {line}\n" in source
    (got,) = interpreter.run(source, [x, target])
    torch.testing.assert_close(got.double(), F.cross_entropy(x.double(), target), rtol=1e-5, atol=1e-6)


def test_a_softmax_of_narrow_rows_or_over_another_dimension_is_left_to_others() -> None:
    for reference, shape in ((lambda x: (x.softmax(-1),), (9, 64)), (lambda x: (x.softmax(0),), (8192, 8192))):
        task = loaded(reference, {"x": torch.zeros(shape, dtype=torch.float16)})
        assert WideSoftmax(task).propose(task.task, []) is None


def linear_of(x: Any, weight: Any, bias: Any = None) -> tuple[torch.Tensor, ...]:
    return (F.linear(x, weight, bias),)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("n", "k", "parts"), [(9, 1030, 1), (9, 3000, 4), (33, 64, 1), (9, 2048, 1), (4097, 512, 1)])
def test_a_linear_of_one_row_is_right_at_any_size(
    interpreter: Interpreter, n: int, k: int, parts: int, bias: bool
) -> None:
    torch.manual_seed(0)
    given = {"x": torch.randn(1, 1, k).half(), "weight": torch.randn(n, k).half()}
    given |= {"bias": torch.randn(n).half()} if bias else {}
    task = loaded(linear_of, given, ("weight", "bias"))
    source = source_of(Gemv(task), task.task).replace("PARTS = 1", f"PARTS = {parts}")
    (got,) = interpreter.run(source, list(given.values()))
    (exact,) = linear_of(*(t.double() for t in given.values()))
    torch.testing.assert_close(got.double(), exact, rtol=2**-10, atol=2**-10 * k**0.5)


def test_a_linear_of_several_rows_is_no_work_for_the_kernel_of_one() -> None:
    task = loaded(linear_of, {"x": torch.randn(2, 8), "weight": torch.randn(4, 8)}, ("weight",))
    assert Gemv(task).propose(task.task, []) is None


CASES: dict[str, tuple[Callable[[LoadedTask], Proposer], Reference, dict[str, tuple[int, ...]]]] = {
    "cross entropy, odd": (CrossEntropy, loss("mean"), {"logits": (2, 50257), "target": (2,)}),
    "cross entropy": (CrossEntropy, loss("mean"), {"logits": (2, 32000), "target": (2,)}),
    "wide softmax": (WideSoftmax, lambda x: (x.softmax(-1),), {"x": (2, 50257)}),
    "softmax held whole": (WideSoftmax, lambda x: (x.softmax(-1),), {"x": (2, 32768)}),
    "gemv": (Gemv, linear_of, {"x": (1, 2048), "weight": (2048, 2048)}),
    "gemv of many outputs": (Gemv, linear_of, {"x": (1, 2048), "weight": (8192, 2048)}),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_compile_for_sm_90_without_spilling_and_in_registers_for_many_warps(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton warns where it is not said
    proposer, reference, shapes = CASES[case]
    given = {n: torch.zeros(s, dtype=torch.int64 if n == "target" else torch.float16) for n, s in shapes.items()}
    task = loaded(reference, given, ("weight",))
    specs = [Tensor(str(t.dtype).removeprefix("torch."), tuple(t.shape), t.stride()) for t in given.values()]
    target = Target()
    build = compile_one(source_of(proposer(task), task.task), [specs], target)
    assert build.trouble(target) is None
    # 64 registers a thread leave half of a multiprocessor's threads resident: what hides the memory's latency.
    assert max(k.registers for k in build.kernels) <= 64


@pytest.mark.parametrize("layout", ["views", "copies"])
def test_merged_linears_compute_each_linear(layout: str) -> None:
    torch.manual_seed(0)
    given = {
        n: torch.randn(s) for n, s in {"x": (2, 3, 16), "q": (8, 16), "k": (4, 16), "bq": (8,), "bk": (4,)}.items()
    }

    def reference(x: Any, q: Any, k: Any, bq: Any, bk: Any) -> tuple[torch.Tensor, ...]:
        return F.linear(x, k, bk), F.linear(x, q, bq)

    task = loaded(reference, given, ("q", "k", "bq", "bk"))
    first = MergedLinears(task).propose(task.task, [])
    assert first is not None
    rejected = attempt(first.hash, "merged-linears", first.knobs, None)
    second = MergedLinears(task).propose(task.task, [rejected])
    assert second is not None
    made = first if layout == "views" else second
    assert made.knobs == {"outputs": layout}
    names = namespace(made.source)
    got = names["kernel"](*given.values(), packed=names["prepare"](*given.values()))
    for mine, theirs in zip(got, reference(*given.values()), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.is_contiguous() == (layout == "copies")
    assert names["STATIC_WEIGHTS"] is True


@pytest.mark.parametrize("widths", [(136, 9, 70), (264, 264, 264)], ids=["apart", "in bulk"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_matmul_of_our_own_writes_each_linear_dense(
    interpreter: Interpreter, bias: bool, widths: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    rows = 64 if len(set(widths)) == 1 else 70  # two times 64 rows are one tile: no output ends within it
    shapes: dict[str, tuple[int, ...]] = {"x": (2, rows, 40)}
    shapes |= {name: (n, 40) for name, n in zip("qkv", widths, strict=True)}
    shapes |= {f"b{name}": (n,) for name, n in zip("qkv", widths, strict=True)} if bias else {}
    given = {n: torch.randn(s).half() for n, s in shapes.items()}

    def reference(x: Any, q: Any, k: Any, v: Any, bq: Any = None, bk: Any = None, bv: Any = None) -> tuple[Any, ...]:
        return F.linear(x, q, bq), F.linear(x, k, bk), F.linear(x, v, bv)

    task = loaded(reference, given, ("q", "k", "v", "bq", "bk", "bv"))
    candidate = MergedMatmul(task).propose(task.task, [])
    assert candidate is not None
    packing = "_kernel = kernel\ndef kernel(*inputs):\n    return _kernel(*inputs, packed=prepare(*inputs))\n"
    got = interpreter.run(candidate.source + packing, list(given.values()))
    for mine, exact in zip(got, reference(*(t.double() for t in given.values())), strict=True):
        assert mine.is_contiguous()
        torch.testing.assert_close(mine.double(), exact, rtol=2**-9, atol=2**-9 * float(exact.abs().max()))


def test_linears_of_different_inputs_or_of_matrices_that_are_no_weights_are_not_merged() -> None:
    given = {"x": torch.randn(3, 8), "y": torch.randn(3, 8), "a": torch.randn(4, 8), "b": torch.randn(4, 8)}
    apart = loaded(lambda x, y, a, b: (F.linear(x, a), F.linear(y, b)), given, ("a", "b"))
    assert MergedLinears(apart).propose(apart.task, []) is None
    data = loaded(lambda x, y, a, b: (F.linear(x, a), F.linear(x, b)), given, ("a",))
    assert MergedLinears(data).propose(data.task, []) is None


@pytest.mark.parametrize("layout", ["view", "copy", "chunks"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_padded_linear_computes_the_linear(layout: str, bias: bool) -> None:
    torch.manual_seed(0)
    given = {"x": torch.randn(2, 1500, 16).bfloat16(), "weight": torch.randn(37, 16).bfloat16()}
    given |= {"bias": torch.randn(37).bfloat16()} if bias else {}
    task = loaded(linear_of, given, ("weight", "bias"))
    history: list[Attempt] = []
    candidate = PaddedLinear(task).propose(task.task, history)
    while candidate is not None and candidate.knobs["outputs"] != layout:
        history.append(attempt(candidate.hash, "padded-linear", candidate.knobs, None))
        candidate = PaddedLinear(task).propose(task.task, history)
    assert candidate is not None
    names = namespace(candidate.source)
    packed = names["prepare"](*given.values())
    got = names["kernel"](*given.values(), packed=packed)
    assert packed[0].shape[0] == 64
    assert got.is_contiguous() == (layout != "view")
    torch.testing.assert_close(got, linear_of(*given.values())[0])


def test_a_linear_of_a_width_of_whole_vectors_is_not_padded() -> None:
    given = {"x": torch.randn(4, 8).half(), "weight": torch.randn(48, 8).half()}
    task = loaded(linear_of, given, ("weight",))
    assert PaddedLinear(task).propose(task.task, []) is None


def biased_gelu(x: Any, weight: Any, bias: Any) -> tuple[torch.Tensor, ...]:
    return (F.gelu(F.linear(x, weight, bias), approximate="tanh"),)


def scaled_residual(x: Any, weight: Any, residual: Any, scale: Any) -> tuple[torch.Tensor, ...]:
    return (residual + F.silu(F.linear(x, weight)).float().mul(scale).to(residual.dtype) / 2,)


def gated(x: Any, weight: Any, up: Any) -> tuple[torch.Tensor, ...]:
    return (torch.relu(F.linear(x, weight)).pow(2) * up,)


EPILOGUES: dict[str, tuple[Reference, dict[str, tuple[int, ...]]]] = {
    "bias and gelu": (biased_gelu, {"x": (2, 67, 40), "weight": (88, 40), "bias": (88,)}),
    "an odd inner size": (biased_gelu, {"x": (1, 5, 37), "weight": (19, 37), "bias": (19,)}),
    "residual": (
        scaled_residual,
        {"x": (70, 64), "weight": (24, 64), "residual": (70, 24), "scale": (24,)},
    ),
    "gate": (gated, {"x": (3, 50, 64), "weight": (130, 64), "up": (3, 50, 130)}),
}


@pytest.mark.parametrize("case", EPILOGUES)
def test_a_matmul_does_what_follows_it_on_its_accumulator(interpreter: Interpreter, case: str) -> None:
    torch.manual_seed(0)
    reference, shapes = EPILOGUES[case]
    given = {n: torch.randn(s).half() for n, s in shapes.items()}
    task = loaded(reference, given, ("weight", "bias"))
    source = source_of(MatmulEpilogue(task), task.task).replace("ROWS = 128", "ROWS = 64").replace("= 256", "= 64")
    (got,) = interpreter.run(source, list(given.values()))
    (exact,) = reference(*(t.double() for t in given.values()))
    torch.testing.assert_close(got.double(), exact, rtol=2**-9, atol=2**-9 * float(exact.abs().max()))


@pytest.mark.parametrize("rows", [8, 19, 96])
@pytest.mark.parametrize("width", [131, 77, 66])
def test_a_matmul_stores_rows_of_an_odd_width_in_whole_vectors(interpreter: Interpreter, rows: int, width: int) -> None:
    torch.manual_seed(0)
    given = {"x": torch.randn(1, rows, 64).half(), "weight": torch.randn(width, 64).half()}
    task = loaded(linear_of, given, ("weight",))
    source = source_of(MatmulEpilogue(task), task.task).replace("ROWS = 128", "ROWS = 16").replace("= 256", "= 64")
    (got,) = interpreter.run(source, list(given.values()))
    assert got.is_contiguous()
    (exact,) = linear_of(*(t.double() for t in given.values()))
    torch.testing.assert_close(got.double(), exact, rtol=2**-9, atol=2**-9 * float(exact.abs().max()))


@pytest.mark.parametrize(
    "reference",
    [
        lambda x, w: (F.linear(x, w),),  # nothing behind it: the library's work
        lambda x, w: (F.linear(x, w).softmax(-1),),
        lambda x, w: (F.linear(x, w) + F.linear(x, w * 2),),
        lambda x, w: (F.linear(x, w)[..., :4] + 1,),
    ],
)
def test_what_is_no_linear_with_pointwise_ops_behind_it_is_left_to_others(reference: Reference) -> None:
    task = loaded(reference, {"x": torch.randn(6, 16).half(), "w": torch.randn(8, 16).half()}, ("w",))
    assert MatmulEpilogue(task).propose(task.task, []) is None


def heads() -> dict[str, torch.Tensor]:
    return {n: torch.randn(1, 2, 8, 16).half() for n in ("q", "k", "v")}


def test_every_back_end_of_attention_is_offered_once_with_the_arguments_of_the_reference() -> None:
    given = heads()

    def reference(q: Any, k: Any, v: Any) -> tuple[torch.Tensor, ...]:
        return (F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25),)

    task = loaded(reference, given)
    history: list[Attempt] = []
    while (candidate := AttentionChoice(task).propose(task.task, history)) is not None:
        history.append(attempt(candidate.hash, "attention-choice", candidate.knobs, None))
        assert "is_causal=True" in candidate.source
        assert "scale=0.25" in candidate.source
        if candidate.knobs["backend"] == "FLASH_ATTENTION":  # the one a CPU has too
            torch.testing.assert_close(
                namespace(candidate.source)["kernel"](*given.values()), reference(*given.values())[0]
            )
    backends = [a.knobs["backend"] for a in history]
    assert backends == ["CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"]


def test_with_a_mask_flash_attention_is_not_offered_and_with_dropout_nothing_is() -> None:
    given = heads() | {"mask": torch.zeros(8, 8).half()}
    masked = loaded(lambda q, k, v, mask: (F.scaled_dot_product_attention(q, k, v, mask),), given)
    history: list[Attempt] = []
    while (candidate := AttentionChoice(masked).propose(masked.task, history)) is not None:
        history.append(attempt(candidate.hash, "attention-choice", candidate.knobs, None))
    assert [a.knobs["backend"] for a in history] == ["CUDNN_ATTENTION", "EFFICIENT_ATTENTION"]
    dropping = loaded(lambda q, k, v: (F.scaled_dot_product_attention(q, k, v, dropout_p=0.5),), heads())
    assert AttentionChoice(dropping).propose(dropping.task, []) is None


def test_a_search_starts_with_what_is_listed_and_goes_on_around_the_best() -> None:
    def emit(knobs: dict[str, Any]) -> str:
        return repr(sorted(knobs.items()))

    history: list[Attempt] = []
    first: list[dict[str, Knob]] = [{"A": 1, "B": 1}, {"A": 2, "B": 1}]
    choices = {"A": (1, 2, 3), "B": (1, 2)}
    for us in (5.0, 3.0):
        candidate = next_candidate("n", history, emit, first, choices)
        assert candidate is not None
        assert candidate.parent is None
        history.append(attempt(candidate.hash, "n", candidate.knobs, us))
    near = next_candidate("n", history, emit, first, choices)
    assert near is not None
    assert near.knobs == {"A": 3, "B": 1}
    assert near.parent == history[1].source_hash


def test_a_knob_that_a_kernel_file_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError, match="0 lines set WARP,"):
        rendered("gemv_kernel.py", {"WARP": "4"}, "")


def turned(x: Any, cos: Any, sin: Any) -> torch.Tensor:
    half = x.shape[-1] // 2
    made: torch.Tensor = x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin
    return made


def both(q: Any, k: Any, cos: Any, sin: Any) -> tuple[torch.Tensor, ...]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return turned(q, cos, sin), turned(k, cos, sin)


def test_outputs_that_are_no_one_loop_nest_are_computed_apart(interpreter: Interpreter) -> None:
    torch.manual_seed(0)
    given = {"q": torch.randn(2, 3, 5, 8), "k": torch.randn(2, 2, 5, 8)}
    given |= {"cos": torch.randn(1, 5, 8), "sin": torch.randn(1, 5, 8)}
    task = loaded(both, given)
    got = interpreter.run(source_of(Apart(task), task.task), list(given.values()))
    for mine, theirs in zip(got, both(*given.values()), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_what_is_one_loop_nest_is_not_taken_apart() -> None:
    task = loaded(lambda x: (x + 1, x * 2), {"x": torch.randn(4, 8)})
    proposer = Apart(task)
    assert proposer.propose(task.task, []) is None
    assert proposer.reason is not None


def test_joined_files_keep_names_that_a_function_hides_and_rename_those_it_does_not() -> None:
    part = "SIZE = {n}\ndef helped(SIZE):\n    return SIZE\ndef kernel(x):\n    return (helped(SIZE=x) + SIZE,)\n"
    source = joined([part.replace("{n}", "1"), part.replace("{n}", "10")], ["x"])
    assert namespace(source)["kernel"](100) == (101, 110)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [32000, 50257])
@pytest.mark.parametrize("early", [True, False])
def test_cross_entropy_is_right_on_the_device(dtype: torch.dtype, width: int, early: bool, tmp_path: Path) -> None:
    given = tokens((512, width), dtype)
    task = loaded(loss("none", widen=False), given)
    path = tmp_path / "candidate.py"
    source = source_of(CrossEntropy(task), task.task).replace("EARLY = False", f"EARLY = {early}")
    assert f"EARLY = {early}" in source
    path.write_text(source, encoding="utf-8")
    got = load_function(path, "kernel")(*(t.cuda() for t in given.values()))
    assert isinstance(got, torch.Tensor)
    (exact,) = loss("none", widen=False)(given["logits"].double(), given["target"])
    torch.testing.assert_close(got.cpu().double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_of_one_row_is_right_on_the_device(bias: bool, tmp_path: Path) -> None:
    given = {"x": torch.randn(1, 1, 2048).bfloat16(), "weight": torch.randn(5000, 2048).bfloat16()}
    given |= {"bias": torch.randn(5000).bfloat16()} if bias else {}
    task = loaded(linear_of, given, ("weight", "bias"))
    path = tmp_path / "candidate.py"
    path.write_text(source_of(Gemv(task), task.task), encoding="utf-8")
    got = load_function(path, "kernel")(*(t.cuda() for t in given.values()))
    assert isinstance(got, torch.Tensor)
    (exact,) = linear_of(*(t.double() for t in given.values()))
    torch.testing.assert_close(got.cpu().double(), exact, rtol=2**-7, atol=1e-3)


ON_DEVICE: dict[str, tuple[Callable[[LoadedTask], Proposer], Reference, dict[str, tuple[int, ...]]]] = {
    "loss of a linear": (
        LinearCrossEntropy,
        head_loss("none"),
        {"x": (1027, 768), "weight": (5003, 768), "target": (1027,)},
    ),
    "softmax, odd": (WideSoftmax, lambda x: (x.softmax(-1),), {"x": (300, 50257)}),
    "softmax held whole": (WideSoftmax, lambda x: (x.softmax(-1),), {"x": (300, 32768)}),
    "log-softmax": (WideSoftmax, lambda x: (x.log_softmax(-1),), {"x": (5, 8193)}),
    "rows of odd width": (MatmulEpilogue, linear_of, {"x": (1027, 768), "weight": (5003, 768)}),
    "rows of even width": (MatmulEpilogue, biased_gelu, {"x": (1027, 768), "weight": (3080, 768), "bias": (3080,)}),
}


@pytest.mark.gpu
@pytest.mark.parametrize("number", [0, 1, 2, 3])
@pytest.mark.parametrize("case", ON_DEVICE)
def test_the_first_settings_are_right_on_the_device(case: str, number: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    proposer, reference, shapes = ON_DEVICE[case]
    scale = 1 if "softmax" in case else 768**-0.25
    given = {
        n: torch.randint(0, 5003, s) if n == "target" else (scale * torch.randn(s)).bfloat16()
        for n, s in shapes.items()
    }
    task = loaded(reference, given, ("weight", "bias"))
    history: list[Attempt] = []
    for _ in range(number + 1):
        candidate = proposer(task).propose(task.task, history)
        assert candidate is not None
        history.append(attempt(candidate.hash, candidate.proposer, candidate.knobs, 1.0 + len(history)))
    path = tmp_path / "candidate.py"
    assert candidate is not None
    path.write_text(candidate.source, encoding="utf-8")
    got = load_function(path, "kernel")(*(t.cuda() for t in given.values()))
    assert isinstance(got, torch.Tensor)
    assert got.is_contiguous()
    (exact,) = reference(*(t.cuda().double() if t.is_floating_point() else t.cuda() for t in given.values()))
    torch.testing.assert_close(got.double(), exact.double(), rtol=2**-7, atol=1e-2 if "rows" in case else 1e-30)
