"""What becomes a task, with which inputs, constants and shapes (A10 to A16, A19, A23, A24, A26)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Norm, batch, tiny_llama
from stand_ins import kernel_calls, winners_of
from torch import nn

import hotswap
from hotswap.cli.main import main
from hotswap.cli.places import find_task
from hotswap.extractor.capture import CapturedGraph, capture
from hotswap.extractor.extract import extract
from hotswap.extractor.load_task import load_task
from hotswap.extractor.node_times import NodeTimes, time_nodes
from hotswap.extractor.regions import op_name
from hotswap.extractor.task import Extraction, task_folder
from hotswap.integrator.run_directory import RunDirectory
from hotswap.models.workload import Call, Workload
from hotswap.optimizer.decision import arm
from hotswap.optimizer.timing import weighted_rounds
from hotswap.optimizer.verdict import Arm, Race
from hotswap.optimizer.winner import Winner
from hotswap.profiler.recording import CallProfile, Limits, Profile

SaveRun = Callable[[list[Winner]], Path]
LIMITS = Limits("cpu", 10.0, {"float32": 0.05}, 1.0, 1 << 25, "")


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def extracted(model: nn.Module, calls: tuple[Call, ...], folder: Path, top: int = 8) -> Extraction:
    rows = tuple(CallProfile(c.name, c.weight, (), 1000.0, (1000.0,), 1000.0, 0.0, 1.0, 1, 0) for c in calls)
    return extract(
        "model", capture(Workload(model, calls)), Profile("model", "cpu", LIMITS, rows), folder / "tasks", top=top
    )


class Catting(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a, b.t()], 0).tanh()


def test_a11_a_task_has_every_tensor_of_a_list_argument_with_its_strides(tmp_path: Path) -> None:
    a, b = torch.randn(3, 8), torch.randn(8, 5)
    extraction = extracted(Catting(), (Call((a, b)),), tmp_path)
    (task,) = extraction.tasks
    assert [(s.shape, s.stride) for s in task.cases[0].inputs] == [((3, 8), (8, 1)), ((5, 8), (1, 5))]
    loaded = load_task(task_folder(tmp_path / "tasks", 0, task))
    (answer,) = loaded.reference(*loaded.inputs())
    torch.testing.assert_close(answer, Catting()(a, b), rtol=0, atol=0)


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.att = Attention()

    def forward(self, x: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.att(g=None, x=x, tables=tables, causal=True)


class Attention(nn.Module):
    def forward(self, *, x: torch.Tensor, g: Any, tables: tuple[torch.Tensor, torch.Tensor], causal: bool) -> Any:
        cos, sin = tables
        assert g is None
        turned = torch.cat((-x[..., 16:], x[..., :16]), -1)
        return (x * cos + turned * sin).tanh() if causal else x


def test_a12_keyword_arguments_nested_tuples_and_none_are_captured(tmp_path: Path) -> None:
    x, tables = batch(), (torch.randn(9, 32), torch.randn(9, 32))
    extraction = extracted(Keywords(), (Call((x,), {"tables": tables}),), tmp_path)
    task = extraction.tasks[0]
    assert task.sites[0].module == "att"
    loaded = load_task(task_folder(tmp_path / "tasks", 0, task))
    # Both tables of the nested tuple, and x beside the halves it is cut into.
    assert [s.shape for s in task.cases[0].inputs].count((9, 32)) == 2
    assert (2, 9, 32) in {s.shape for s in task.cases[0].inputs}
    torch.testing.assert_close(loaded.reference(*loaded.inputs())[0], Keywords()(x, tables), rtol=0, atol=0)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.relu = Norm(), nn.ReLU()
        self.up = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.up(self.norm(self.relu(self.up(x))))
        return self.up(self.norm(self.relu(self.up(wide[:, :1]))))


def test_a13_a_module_called_with_two_shapes_is_one_task_with_both_and_their_counts(tmp_path: Path) -> None:
    extraction = extracted(Twice(), (Call((batch(),)),), tmp_path)
    by_kind = {task.kind: task for task in extraction.tasks}
    assert sorted((c.inputs[0].shape, c.calls) for c in by_kind["memory"].cases) == [((2, 1, 32), 1), ((2, 9, 32), 1)]
    assert sum(c.calls for c in by_kind["anchor"].cases) == 4


class Spiky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.up.weight.data[3] *= 1e3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.up(x), -1) * 2


def test_a14_correctness_inputs_are_those_the_model_really_made(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Spiky(), torch.randn(8, 16)
    extraction = extracted(model, (Call((x,)),), tmp_path)
    rank, task = next((i, t) for i, t in enumerate(extraction.tasks) if t.kind == "memory")
    assert task.cases[0].inputs[0].storage is not None  # kept whole, not described
    loaded = load_task(task_folder(tmp_path / "tasks", rank, task))
    assert torch.equal(loaded.inputs()[0], model.up(x))
    assert loaded.inputs()[0].abs().max() > 100
    other = loaded.inputs(generator=torch.Generator().manual_seed(0))[0]
    assert not torch.equal(other, loaded.inputs()[0])  # drawn ones are another matter, with the same spread
    assert other.abs().max() > 100


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's, of the second of the two
def test_a15_a_task_gives_the_dtype_that_very_module_gives(tmp_path: Path) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    x = batch().bfloat16()
    theirs: nn.Module = LlamaRMSNorm(32)
    # Torch's own writes into an intermediate of its own where dtypes are mixed, which nobody else can see.
    for norm, dtype in ((theirs, torch.float32), (Norm(), torch.float32), (nn.RMSNorm(32), x.dtype)):
        torch._dynamo.reset()
        assert norm(x).dtype == dtype
        extraction = extracted(norm, (Call((x,)),), tmp_path / type(norm).__name__)
        assert len(extraction.tasks) == 1, extraction.skipped
        for rank, task in enumerate(extraction.tasks):
            loaded = load_task(task_folder(tmp_path / type(norm).__name__ / "tasks", rank, task))
            assert [s.dtype for s in task.cases[0].inputs] == ["bfloat16", "float32"]
            assert loaded.reference(*loaded.inputs())[0].dtype == dtype


@pytest.mark.parametrize("view", ["columns", "transposed"])
def test_a16_strides_of_the_real_call_are_the_tasks(view: str, tmp_path: Path, save_run: SaveRun) -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x[..., ::2] if view == "columns" else x.transpose(1, 2))

    model, x = Cut().eval(), torch.randn(2, 6, 16) if view == "columns" else torch.randn(2, 8, 6)
    (task,) = extracted(model, (Call((x,)),), tmp_path).tasks
    assert task.cases[0].inputs[0].stride == ((96, 16, 2) if view == "columns" else (48, 1, 6))
    torch._dynamo.reset()
    made = hotswap.patch(model, save_run(winners_of(model.forward, x)))
    assert torch.equal(model(x), Cut.forward(model, x))
    assert kernel_calls(made) == 1


def test_a19_a_task_hands_the_models_own_weights_to_a_candidate(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(2, 3, 3), nn.GELU())
    x = torch.randn(1, 2, 5, 5, 5)
    extraction = extracted(model, (Call((x,)),), tmp_path)
    rank, task = next((i, t) for i, t in enumerate(extraction.tasks) if t.kind == "anchor")
    roles = {spec.name: spec.role for spec in task.cases[0].inputs}
    assert sorted(roles.values()) == ["activation", "weight", "weight"]
    inputs = load_task(task_folder(tmp_path / "tasks", rank, task)).inputs()
    kept = [t for t, spec in zip(inputs, task.cases[0].inputs, strict=True) if spec.role == "weight"]
    conv: Any = model[0]
    assert any(torch.equal(t, conv.weight) for t in kept)


def test_a23_decode_steps_count_by_how_often_they_are_served(tmp_path: Path) -> None:
    calls = (Call((batch(64),), name="prefill"), Call((batch(1),), weight=64.0, name="decode"))
    torch.manual_seed(0)
    extraction = extracted(Twice(), calls, tmp_path)
    task = next(t for t in extraction.tasks if t.kind == "anchor")
    weights = {c.inputs[0].shape[1]: c.weight for c in task.cases}
    assert weights[1] > 10 * weights[64]
    # A kernel 2x faster at prefill and 10% slower at decode is a loss of the mix.
    races = [
        _race("prefill", weights[64], candidate=50.0, eager=100.0),
        _race("decode", weights[1], candidate=11.0, eager=10.0),
    ]
    ours, theirs = (weighted_rounds(races, name) for name in ("candidate", "eager"))
    assert ours is not None
    assert theirs is not None
    assert ours[0] > theirs[0]


def _race(case: str, weight: float, **us: float) -> Race:
    arms = tuple(Arm(name, (value,) * 8, value) for name, value in us.items())
    made = Race(case, weight, arms, {}, "", "", 0.2, 0.0)
    assert arm(made, "eager") is not None
    return made


class TwoScales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.up = Norm(32, 1e-6), Norm(32, 1e-5), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.up(self.one(self.up(x))))


def test_a24_another_constant_is_another_task(tmp_path: Path, save_run: SaveRun) -> None:
    model, x = TwoScales(), batch()
    memory = [t for t in extracted(model, (Call((x,)),), tmp_path).tasks if t.kind == "memory"]
    assert len(memory) == 2
    torch._dynamo.reset()
    made = hotswap.patch(model, save_run(winners_of(nn.Sequential(model.up, model.one).forward, x)))
    assert torch.equal(model(x), TwoScales.forward(model, x))
    assert kernel_calls(made) == 1


def test_a26_a_task_has_all_recorded_batch_sizes_with_a_weighted_total(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    calls = tuple(Call((torch.randn(rows, 16),), name=f"b{rows}") for rows in (1, 2, 4, 8, 16))
    task = next(t for t in extracted(model, calls, tmp_path).tasks if t.kind == "anchor")
    assert [c.inputs[0].shape for c in task.cases] == [(rows, 16) for rows in (1, 2, 4, 8, 16)]
    assert task.eager_us == pytest.approx(sum(c.eager_us * c.weight for c in task.cases))


# As CUPTI shows two kernels of torch: one in a namespace without a name, one of a library.
SYMBOL = "void at::native::(anonymous namespace)::rows_kernel<float, 4>(float const*, at::Array<char*, 2>)"
LIBRARY = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_bias_TNT"


def test_a10_a_task_is_found_by_the_symbol_of_a_kernel_that_its_ops_launched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_gpu(graph: CapturedGraph, device: str) -> NodeTimes:
        found = time_nodes(graph, device, seconds=0.0)
        return NodeTimes(found.us, {n: frozenset({LIBRARY if op_name(n) == "linear" else SYMBOL}) for n in found.us})

    monkeypatch.setattr("hotswap.extractor.extract.time_nodes", on_a_gpu)
    with RunDirectory.create("scales", out=tmp_path / "run", settings={}, sources={}, seed=0) as directory:
        extraction = extracted(TwoScales(), (Call((batch(),)),), directory.folder)
    run = directory.folder
    for kind, spellings in (
        ("anchor", (LIBRARY,)),
        ("memory", (SYMBOL, "at::native::rows_kernel", "rows_kernel")),
    ):
        task = next(t for t in extraction.tasks if t.kind == kind)
        for spelled in spellings:
            assert find_task(f"{run}:{spelled}").name.endswith(task.name)
    assert main(["show", f"{run}:rows_kernel"]) == 0
    assert "launches  at::native::rows_kernel\n" in capsys.readouterr().out


def test_a10_a_task_is_found_by_name_op_module_and_fingerprint_and_a_miss_names_what_is_near(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = TwoScales()
    with RunDirectory.create("scales", out=tmp_path / "run", settings={}, sources={}, seed=0) as directory:
        extraction = extracted(model, (Call((batch(),)),), directory.folder)
    run = directory.folder
    linear = next(t for t in extraction.tasks if t.kind == "anchor")
    for spelled in (linear.name, "linear", "aten::linear", "up", linear.fingerprint):
        assert find_task(f"{run}:{spelled}").name.endswith(linear.name)
    assert main(["show", f"{run}:{linear.name[:-1]}"]) == 2
    said = capsys.readouterr().err
    assert f"did you mean '{linear.name}'" in said
    assert said.count("\n") == 1


def test_a_llama_is_cut_into_tasks_whose_sites_carry_its_module_paths(tmp_path: Path) -> None:
    ids = torch.randint(1, 128, (1, 8))
    extraction = extracted(tiny_llama(), (Call(kwargs={"input_ids": ids, "use_cache": False}),), tmp_path, top=20)
    modules = {site.module for task in extraction.tasks for site in task.sites}
    assert {"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj", "lm_head"} <= modules
