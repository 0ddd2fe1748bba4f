"""Each form of spec becomes a workload; each mistake in one becomes one line that says what, where and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hotswap.models.errors import EnvironmentMissing, HotswapError, InputError, ModelRaised, SpecError
from hotswap.models.spec import LoadOptions, classify, load, resolve_dtype
from hotswap.models.trial import run_call
from hotswap.models.workload import Call, Workload

EXAMPLES = Path(__file__).parents[2] / "examples"
USER_CODE = """\
import torch
from torch import nn
import beside

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x, *, flag=False):
        return self.linear(x)

class Sized(nn.Module):
    def __init__(self, width):
        super().__init__()

def bare():
    return Net()

def pair():
    return Net(), torch.zeros(2, 4)

def wrong_shape():
    return Net(), torch.zeros(2, 5)

def wrong_name():
    return Net(), {"y": torch.zeros(2, 4)}

def boom():
    raise ValueError("no luck\\nand a second line")

def leave():
    raise SystemExit(3)

def number():
    return 3

def one():
    return torch.zeros(1, 4)

def for_model(model):
    return {"x": torch.zeros(1, model.linear.in_features), "flag": True}

instance = Net()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a user's files in it."""
    (tmp_path / "user_code.py").write_text(USER_CODE)
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "needs.py").write_text("\nimport nosuchlibrary\n")
    (tmp_path / "broken.py").write_text("def (\n")
    (tmp_path / "notes.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("user_code", "beside"):
        sys.modules.pop(name, None)


def _weight(workload: Workload) -> torch.Tensor:
    return workload.model.get_parameter("linear.weight")


def test_a_file_factory_brings_its_model_and_inputs(folder: Path) -> None:
    workload = load("user_code.py:pair")
    assert type(workload.model).__name__ == "Net"
    assert workload.spec == "user_code.py:pair"
    assert not workload.model.training
    assert run_call(workload.model, workload.calls[0]).shape == (2, 4)


def test_the_odd_example_runs_as_it_stands() -> None:
    workload = load(f"{EXAMPLES / 'odd_forward.py'}:make")
    call = workload.calls[0]
    assert call.args == ()
    assert set(call.kwargs) == {"tokens", "keep", "temperature"}
    assert set(run_call(workload.model, call)) == {"log_probs", "summary"}
    assert (
        workload.model.get_parameter("embed.weight")
        is dict(workload.model.named_parameters(remove_duplicate=False))["head.weight"]
    )


@pytest.mark.parametrize("inputs", ["user_code.py:one", "user_code.py:for_model"])
@pytest.mark.parametrize("spec", ["user_code.py:bare", "user_code.py:instance", "user_code:Net", "user_code.py:pair"])
def test_inputs_may_come_from_a_function_with_or_without_the_model(folder: Path, spec: str, inputs: str) -> None:
    workload = load(spec, LoadOptions(inputs=inputs))
    assert run_call(workload.model, workload.calls[0]).shape == (1, 4)


def test_a_users_model_keeps_its_dtype_unless_another_is_asked_for(folder: Path) -> None:
    assert _weight(load("user_code.py:pair")).dtype is torch.float32
    asked = load("user_code.py:pair", LoadOptions(dtype="bf16"))
    assert _weight(asked).dtype is torch.bfloat16
    assert asked.calls[0].args[0].dtype is torch.bfloat16


def test_equal_seeds_build_equal_models(folder: Path) -> None:
    first, second, other = (_weight(load("user_code.py:pair", LoadOptions(seed=s))) for s in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("spec", "kind", "said"),
    [
        ("", SpecError, "model: expected NAME@full"),
        ("nofile.py:make", SpecError, "nofile.py:make: no such file: nofile.py"),
        (
            "user_code.py",
            SpecError,
            "expected path/to/file.py:factory, got no factory name; did you mean user_code.py:for_model?",
        ),
        ("user_code.py:bear", SpecError, "user_code.py has no 'bear'; did you mean 'bare'?"),
        ("user_code.py:number", SpecError, "expected an nn.Module, (module, example_inputs) or a Workload, got int"),
        ("user_code.py:Sized", SpecError, "must be callable without arguments, but needs width"),
        ("user_code.py:boom", ModelRaised, "raised ValueError: no luck at {folder}/user_code.py:29"),
        ("user_code.py:leave", ModelRaised, "raised SystemExit: 3 at {folder}/user_code.py:32"),
        ("user_code.py:bare", InputError, "no example inputs for Net.forward(x, flag=)"),
        ("user_code.py:wrong_name", InputError, "does not fit Net.forward(x, flag=): missing a required argument: 'x'"),
        (
            "needs.py:make",
            EnvironmentMissing,
            "needs the module 'nosuchlibrary', which is not installed ({folder}/needs.py:2)",
        ),
        (
            "broken.py:make",
            ModelRaised,
            "raised SyntaxError: invalid syntax (broken.py, line 1) at {folder}/broken.py:1",
        ),
        ("nomodule:Net", SpecError, "no module 'nomodule' is installed or in {folder}"),
        ("needs:Net", EnvironmentMissing, "needs the module 'nosuchlibrary'"),
        ("user_code:Nte", SpecError, "user_code.py has no 'Nte'; did you mean 'Net'?"),
        ("notes.txt", SpecError, "got a file that is neither .py nor a config.json"),
        ("./nowhere", SpecError, "got a path where nothing is"),
        ("two words", SpecError, "got something that is none of these"),
    ],
)
def test_a_mistaken_spec_gets_one_clear_line(folder: Path, spec: str, kind: type[HotswapError], said: str) -> None:
    with pytest.raises(kind) as caught:
        load(spec)
    assert type(caught.value) is kind
    assert said.replace("{folder}", str(folder)) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        (LoadOptions(device="cuda:99"), EnvironmentMissing, "--device cuda:99: this machine has"),
        (LoadOptions(device="tpu"), SpecError, "--device tpu: expected auto, cpu, cuda or cuda:N"),
        (LoadOptions(dtype="int8"), SpecError, "--dtype: expected one of auto, bfloat16"),
        (LoadOptions(batch=3), InputError, "this one brings its own"),
        (LoadOptions(inputs="user_code.py:nothing"), SpecError, "user_code.py has no 'nothing'"),
        (
            LoadOptions(inputs="user_code.py:boom"),
            ModelRaised,
            "--inputs user_code.py:boom: raised ValueError: no luck",
        ),
    ],
)
def test_a_mistaken_option_gets_one_clear_line(
    folder: Path, options: LoadOptions, kind: type[HotswapError], said: str
) -> None:
    with pytest.raises(kind) as caught:
        load("user_code.py:pair", options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_forward_that_raises_is_told_with_the_line_that_called_torch(folder: Path) -> None:
    workload = load("user_code.py:wrong_shape")
    with pytest.raises(ModelRaised) as caught:
        run_call(workload.model, workload.calls[0])
    assert str(caught.value).startswith("Net([2, 5]): raised RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert f"at {folder}/user_code.py:10;" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_running_out_of_memory_is_told_apart_from_a_failing_model() -> None:
    class Greedy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("tried to allocate too much")

    with pytest.raises(HotswapError, match=r"Greedy\(\[1\]\): out of memory at") as caught:
        run_call(Greedy(), Call(args=(torch.zeros(1),)))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("gpt2@tiny", "zoo"),
        ("user_code.py:pair", "file"),
        ("dir/sub/file.py:Class", "file"),
        ("pkg.mod:Class", "module"),
        ("org/name", "hub"),
        ("gpt2", "hub"),
        ("org/name@v1.0", "hub"),
        (".", "directory"),
    ],
)
def test_forms_of_spec_are_told_apart(folder: Path, spec: str, kind: str) -> None:
    assert classify(spec) == kind


@pytest.mark.parametrize(("flags", "expected"), [({"amx_bf16"}, torch.bfloat16), ({"avx2"}, torch.float32)])
def test_the_automatic_dtype_is_bf16_only_where_the_cpu_multiplies_it(
    flags: set[str], expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotswap.models.machine.cpu_flags", lambda: frozenset(flags))
    assert resolve_dtype("auto", "cpu") is expected
    assert resolve_dtype("fp16", "cpu") is torch.float16
