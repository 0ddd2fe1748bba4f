"""A task as KernelBench's problem and its kernel as ModelNew: files that stand alone and agree."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from hotswap.extractor.load_task import LoadedTask, load_task
from hotswap.extractor.new_task import new_task
from hotswap.extractor.problem import Problem, read_problem
from hotswap.integrator.export_kernelbench import export_kernelbench
from hotswap.models.errors import SpecError
from hotswap.profiler.recording import Limits

LIMITS = Limits("cpu", 10.0, {"float32": 0.1}, 1.0, 1 << 20, "2026-11-30T00:00:00Z", ((1 << 17, 10.0),))
KERNEL = """
    from __future__ import annotations

    import torch

    def kernel(at, table, gain):
        return table[at].float() * gain
"""
NATIVE = '''
    import ctypes
    import torch
    from hotswap.optimizer.native import compile_cpp

    LIBRARY = compile_cpp("""extern "C" float twice(float x) { return 2 * x; }""")
    LIBRARY.twice.restype, LIBRARY.twice.argtypes = ctypes.c_float, [ctypes.c_float]

    def kernel(at, table, gain):
        return table[at].float() * gain * LIBRARY.twice(0.5)
'''


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> LoadedTask:
    """A lookup with a table in bf16 whose rows lie apart, and a gain."""

    def inputs(seed: int, shape_index: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        table = nn.Parameter(torch.randn(9, 16, generator=generator).bfloat16()[:, ::2])
        return torch.randint(0, 9, (5, 3), generator=generator), table, nn.Parameter(torch.ones(8) * 3)

    def reference(at: torch.Tensor, table: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(at, table).float() * gain

    folder = tmp_path_factory.mktemp("kernelbench") / "lookup"
    new_task(Problem("lookup", reference, inputs), folder, limits=LIMITS)
    return load_task(folder)


@pytest.mark.parametrize("kernel", [KERNEL, NATIVE], ids=["torch", "C++"])
def test_problem_and_solution_agree_where_hotswap_is_not_installed(
    task: LoadedTask, tmp_path: Path, kernel: str
) -> None:
    problem, solution = export_kernelbench(task, tmp_path / "out", textwrap.dedent(kernel))
    script = f"""
        import runpy, sys, torch
        sys.modules["hotswap"] = None
        theirs, ours = runpy.run_path({str(problem)!r}), runpy.run_path({str(solution)!r})
        models = []
        for cls in (theirs["Model"], ours["ModelNew"]):
            torch.manual_seed(3)
            models.append(cls(*theirs["get_init_inputs"]()))
        given = theirs["get_inputs"]()
        assert [p.shape for p in models[0].parameters()] == [(9, 8), (8,)]
        assert [str(p.dtype) for p in models[1].parameters()] == ["torch.bfloat16", "torch.float32"]
        assert models[0].table.stride() == (16, 2), models[0].table.stride()
        torch.testing.assert_close(models[1](*given), models[0](*given), rtol=0, atol=0)
        print(tuple(models[0](*given).shape), float(models[0].gain.mean()))
    """
    done = subprocess.run([sys.executable, "-P", "-c", textwrap.dedent(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(5, 3, 8) 3.0\n"


def test_an_exported_problem_is_the_same_task_when_it_is_read_again(task: LoadedTask, tmp_path: Path) -> None:
    (problem,) = export_kernelbench(task, tmp_path / "out")
    again = new_task(read_problem(problem), tmp_path / "again", limits=LIMITS)
    assert again.fingerprint == task.task.fingerprint
    assert [(s.name, s.shape, s.stride, s.dtype, s.role) for s in again.cases[0].inputs] == [
        (s.name, s.shape, s.stride, s.dtype, s.role) for s in task.task.cases[0].inputs
    ]


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        ("STATIC_WEIGHTS = True\ndef kernel(at, table, gain, packed): ...\n", "packs weights"),
        ("import hotswap\ndef kernel(at, table, gain): ...\n", "imports hotswap"),
    ],
)
def test_a_kernel_that_cannot_be_one_module_is_refused(task: LoadedTask, tmp_path: Path, kernel: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        export_kernelbench(task, tmp_path / "out", kernel)
    assert not (tmp_path / "out").exists()
