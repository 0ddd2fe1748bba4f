"""A task from a file, ours or KernelBench's, is like a captured one: it stands alone and says what may vary."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from hotswap.extractor.load_task import load_task
from hotswap.extractor.new_task import new_task
from hotswap.extractor.problem import Problem
from hotswap.extractor.task import Task
from hotswap.models.errors import InputError, ModelRaised, SpecError
from hotswap.profiler.recording import Limits

LIMITS = Limits("cpu", 10.0, {"float32": 0.1}, 1.0, 1 << 20, "2026-11-30T00:00:00Z", ((1 << 17, 10.0),))

OURS = """
    import torch
    from torch import nn

    SHAPES = {"prefill": 1, "decode": 64}
    CONSTS = {"eps": 1e-6}

    def reference(x, weight, *, eps):
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)

    def inputs(seed, shape_index=0):
        generator = torch.Generator().manual_seed(seed)
        rows = (24, 2)[shape_index]
        x = torch.randn(rows, 2 * 16, generator=generator)[:, ::2]
        return x, nn.Parameter(1 + 0.1 * torch.randn(16, generator=generator))
"""
THEIRS = """
    import torch
    import torch.nn as nn

    class Model(nn.Module):
        def __init__(self, width, slope):
            super().__init__()
            self.norm = nn.BatchNorm1d(width)
            self.act = nn.LeakyReLU(slope)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(self.act(self.norm(x)))

    def get_inputs():
        return [torch.rand(6, 8)]

    def get_init_inputs():
        return [8, 0.25]
"""

Make = Callable[..., Task]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make a task of a file's text, or of a problem, in `tmp_path / "task"`."""

    def made(source: str | Problem, **options: object) -> Task:
        if isinstance(source, str):
            (tmp_path / "mine.py").write_text(textwrap.dedent(source))
        given = tmp_path / "mine.py" if isinstance(source, str) else source
        return new_task(given, tmp_path / "task", limits=LIMITS, **options)  # type: ignore[arg-type]

    return made


def test_a_file_of_our_form_becomes_a_task_with_weighted_shapes(make: Make, tmp_path: Path) -> None:
    task = make(OURS)
    assert task == Task.load(tmp_path / "task" / "task.json")
    assert [(c.name, c.weight, c.inputs[0].shape, c.inputs[0].stride) for c in task.cases] == [
        ("prefill", 1.0, (24, 16), (32, 2)),
        ("decode", 64.0, (2, 16), (32, 2)),
    ]
    assert [(s.name, s.role) for s in task.cases[0].inputs] == [("x", "activation"), ("weight", "weight")]
    assert task.size_symbols == (((0, 0),), ((0, 1), (1, 0)))
    assert (task.name, task.kind, len(task.fingerprint), task.outputs) == ("mine", "memory", 16, 1)
    assert task.eager_us > 0
    assert task.floor_us > 0
    assert task.eager_us == pytest.approx(task.cases[0].eager_us + 64 * task.cases[1].eager_us)


def test_the_task_holds_the_values_the_file_gave_and_computes_what_it_computes(make: Make, tmp_path: Path) -> None:
    make(OURS, seed=3)
    loaded = load_task(tmp_path / "task")
    x, weight = loaded.inputs(1)
    generator = torch.Generator().manual_seed(3)
    torch.testing.assert_close(x, torch.randn(2, 32, generator=generator)[:, ::2], rtol=0, atol=0)
    wanted = torch.nn.functional.rms_norm(x, (16,), weight, 1e-6)
    torch.testing.assert_close(loaded.reference(x, weight), (wanted,))


def test_its_reference_runs_without_the_file_and_without_us(make: Make, tmp_path: Path) -> None:
    make(OURS)
    (tmp_path / "mine.py").unlink()
    script = tmp_path / "task" / "reference.py"
    done = subprocess.run([sys.executable, "-I", str(script)], capture_output=True, text=True, check=True)
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["prefill", "1.0"], ["decode", "64.0"]]
    assert "hotswap" not in script.read_text()


def test_a_written_reference_is_itself_a_file_of_our_form(make: Make, tmp_path: Path) -> None:
    first = make(OURS.replace("nn.Parameter(", "(").replace("[:, ::2]", "[:, :16].contiguous()"))
    again = new_task(tmp_path / "task" / "reference.py", tmp_path / "again", limits=LIMITS)
    assert (again.fingerprint, again.inputs) == (first.fingerprint, first.inputs)
    assert [(c.name, c.weight) for c in again.cases] == [(c.name, c.weight) for c in first.cases]


def test_a_kernelbench_problem_has_its_parameters_as_weights_and_is_in_eval_mode(make: Make, tmp_path: Path) -> None:
    task = make(THEIRS)
    names = ("x", "norm_weight", "norm_bias", "norm_running_mean", "norm_running_var")
    assert task.inputs == names  # the count of batches is read by nobody
    assert [s.role for s in task.cases[0].inputs] == ["activation", *["weight"] * 4]
    assert task.size_symbols == (((0, 0),), ((0, 1), *((i, 0) for i in range(1, 5))))
    x, weight, bias, mean, var = load_task(tmp_path / "task").inputs()
    got = load_task(tmp_path / "task").reference(x, weight + 1, bias + 2, mean + 3, var + 4)
    normed = torch.nn.functional.batch_norm(x, mean + 3, var + 4, weight + 1, bias + 2)
    torch.testing.assert_close(got, (torch.nn.functional.leaky_relu(normed, 0.25),))


def test_dtype_casts_floats_and_leaves_integers_strides_and_aliases(make: Make) -> None:
    def inputs(seed: int, shape_index: int) -> tuple[torch.Tensor, ...]:
        base = torch.randn(5, 8, generator=torch.Generator().manual_seed(seed))
        return base[:, 2:6], base[:, 3:7], torch.arange(5).expand(4, 5).t()

    task = make(Problem("gated", lambda x, gate, at: x * gate.sigmoid() + at, inputs), dtype=torch.bfloat16)
    specs = task.cases[0].inputs
    assert [(s.dtype, s.stride, s.offset, s.alias_of) for s in specs] == [
        ("bfloat16", (8, 1), 2, None),
        ("bfloat16", (8, 1), 3, 0),
        ("int64", (1, 0), 0, None),
    ]
    assert task.inputs == ("x", "gate", "at")


def test_a_module_and_numbers_may_be_given_from_python(make: Make, tmp_path: Path) -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(4, 6)

        def forward(self, x: torch.Tensor, power: int) -> dict[str, torch.Tensor]:
            up = self.up(x)
            return {"up": up, "power": up.pow(power)}

    model = Gate()
    task = make(Problem("gate", model, lambda seed, _: (torch.randn(3, 4), 3)))
    assert (task.kind, task.inputs, task.outputs) == ("anchor", ("x", "up_weight", "up_bias"), 2)
    assert task.sites[0].module_class == "Gate"
    x, weight, bias = load_task(tmp_path / "task").inputs()
    wanted = x @ weight.T + bias
    torch.testing.assert_close(load_task(tmp_path / "task").reference(x, weight, bias), (wanted, wanted.pow(3)))


def test_a_size_that_became_a_number_is_fixed_and_said_so(make: Make) -> None:
    task = make(Problem("mean", lambda x: x.cumsum(1) / x.shape[1], lambda seed, _: (torch.rand(6, 9),)))
    assert task.size_symbols == (((0, 0),),)
    assert "x[1] is fixed" in task.notes[0]


def test_shapes_whose_sizes_are_equal_by_chance_still_are_one_task(make: Make, tmp_path: Path) -> None:
    shapes = (("square", 1.0), ("tall", 1.0))

    def inputs(seed: int, shape_index: int) -> tuple[torch.Tensor]:
        return (torch.randn(((8, 8), (24, 8))[shape_index], generator=torch.Generator().manual_seed(seed)),)

    def reference(x: torch.Tensor) -> torch.Tensor:
        return x.exp().view(x.shape[0] * 2, 4) + torch.arange(x.shape[0] * 2).view(-1, 1)[: x.shape[0] * 2]

    with pytest.raises(InputError, match="square and tall run different computations"):
        make(Problem("twice", reference, inputs, shapes))
    rows = Problem("rows", lambda x: x.exp() * torch.ones(x.shape[0], 1).cumsum(0), inputs, shapes)
    task = make(rows)
    loaded = load_task(tmp_path / "task")
    for case in range(2):
        (x,) = loaded.inputs(case)
        torch.testing.assert_close(loaded.reference(x), (rows.reference(x),))
    assert [c.name for c in task.cases] == ["square", "tall"]


@pytest.mark.parametrize(
    ("change", "kind", "why"),
    [
        (("def reference", "def reverence"), SpecError, "expected reference and inputs, or Model, get_inputs"),
        (("1, \"decode\": 64", "0"), SpecError, "SHAPES: expected a dict or list of unlike names"),
        (("{\"eps\": 1e-6}", "3"), SpecError, "CONSTS: expected a dict"),
        (("return x, nn", "return 3, nn"), ModelRaised, "reference: raised AttributeError: 'int' object"),
        (("return x, nn", "return x.tolist(), nn"), InputError, "numbers are constants.*, got a list"),
        (("return x, nn", "raise KeyError('gone')\n        return x, nn"), ModelRaised, "inputs: raised KeyError"),
        (("(24, 2)", "(24,)"), ModelRaised, "shape decode: inputs: raised IndexError"),
        (("return weight *", "return torch.randn_like(x) *"), InputError, "two answers for the same inputs"),
        (("return weight *", "return x *"), InputError, "does not use its input weight"),
        (("return weight *", "return x, weight *"), InputError, "output 0 is not what its graph computes"),
        (("return weight *", "x.mul_(2)\n        return weight *"), InputError, "changes its input x in place"),
        (("return weight *", "return 1 if x.sum() > 0 else weight *"), InputError, "tensor or several, got int"),
        (("return weight *", "return x.exp() * x if x.sum() > 9 else weight *"), InputError, "as one graph"),
        (("return weight *", "return 1 // 0 *"), ModelRaised, "reference: raised ZeroDivisionError"),
        (("def inputs", "TABLE = torch.ones(16)\n\n    def inputs"), None, ""),
        (("return x, nn", "return x[:, :1].expand(rows, 16), x, nn"), InputError, "does not fit reference"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_task_is_refused_in_one_line(
    make: Make, tmp_path: Path, change: tuple[str, str], kind: type[Exception] | None, why: str
) -> None:
    assert change[0] in OURS
    if kind is None:
        make(OURS.replace(*change))
        return
    with pytest.raises(kind, match=why) as raised:
        make(OURS.replace(*change))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "task").exists()


def test_outputs_are_in_the_order_in_which_the_reference_returns_them(make: Make, tmp_path: Path) -> None:
    def several(x: torch.Tensor) -> dict[str, object]:
        y = x.exp()
        return {"b": y + 1, "a": y, "z": (y + 2, y)}

    task = make(Problem("several", several, lambda seed, _: (torch.randn(3, 4),)))
    (x,) = load_task(tmp_path / "task").inputs()
    y = x.exp()
    torch.testing.assert_close(load_task(tmp_path / "task").reference(x), (y + 1, y, y + 2, y))
    assert task.outputs == 4


def test_a_tensor_that_is_no_input_is_refused(make: Make) -> None:
    table = torch.ones(4)
    with pytest.raises(InputError, match="reads a tensor that is no input"):
        make(Problem("table", lambda x: x.exp() * table, lambda seed, _: (torch.randn(3, 4),)))


def test_a_folder_in_use_is_left_alone(make: Make, tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mine.txt").write_text("stays")
    with pytest.raises(SpecError, match="exists and is not empty"):
        make(OURS)
    assert (tmp_path / "task" / "mine.txt").read_text() == "stays"
