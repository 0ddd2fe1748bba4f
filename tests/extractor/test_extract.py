"""From a capture to ranked tasks that stand alone."""

from __future__ import annotations

import errno
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hotswap.extractor.capture import capture
from hotswap.extractor.extract import extract, module_path
from hotswap.extractor.load_task import load_task
from hotswap.extractor.task import Extraction, task_folder
from hotswap.models.errors import InputError, ModelRaised, RecordError, ResourceExhausted
from hotswap.models.workload import Call, Workload
from hotswap.profiler.recording import CallProfile, Limits, Profile


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(self.up(self.norm(x)))


class Twice(nn.Module):
    """One block called with two shapes, with keyword arguments and a dict coming out."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(32)

    def forward(self, *, wide: torch.Tensor) -> dict[str, torch.Tensor]:
        first = self.block(wide)
        return {"first": first, "second": self.block(first[:, :1])}


def profile_of(calls: tuple[Call, ...]) -> Profile:
    limits = Limits("cpu", 10.0, {"float32": 0.05}, 1.0, 1 << 25, "")
    rows = tuple(CallProfile(c.name, c.weight, (), 1000.0, (1000.0,), 1000.0, 0.0, 1.0, 1, 0) for c in calls)
    return Profile("tiny", "cpu", limits, rows)


def extracted(workload: Workload, folder: Path, top: int = 8) -> Extraction:
    return extract("tiny", capture(workload), profile_of(workload.calls), folder, top=top)


@pytest.fixture
def twice() -> Workload:
    torch._dynamo.reset()
    return Workload(Twice().eval(), (Call(kwargs={"wide": torch.randn(2, 5, 32)}),))


def test_a_disk_with_no_room_for_the_inputs_of_a_task_is_one_clear_error(
    twice: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def full(path: Path, *args: Any, **kwargs: Any) -> Any:
        if "safetensors" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, *args, **kwargs)

    monkeypatch.setattr("hotswap.models.record.Path.open", full)
    with pytest.raises(ResourceExhausted, match=r"inputs\.safetensors: cannot be written \(No space left"):
        extracted(twice, tmp_path)


def test_a_block_called_with_two_shapes_gives_one_task_with_both(twice: Workload, tmp_path: Path) -> None:
    extraction = extracted(twice, tmp_path)
    (linear,) = [t for t in extraction.tasks if t.kind == "anchor"]
    assert sorted(c.inputs[0].shape for c in linear.cases) == [(2, 1, 32), (2, 5, 32)]
    assert len(linear.sites) == 1


def test_more_equal_layers_are_more_calls_and_no_more_tasks(tmp_path: Path) -> None:
    def names(depth: int) -> dict[str, int]:
        torch._dynamo.reset()
        model = nn.Sequential(*(Block(16) for _ in range(depth))).eval()
        extraction = extracted(Workload(model, (Call((torch.randn(4, 16),)),)), tmp_path / str(depth))
        return {t.fingerprint: sum(c.calls for c in t.cases) for t in extraction.tasks}

    shallow, deep = names(3), names(9)
    assert shallow.keys() == deep.keys()
    assert sum(deep.values()) > 2 * sum(shallow.values())


def test_tasks_come_with_the_most_attainable_gain_first(twice: Workload, tmp_path: Path) -> None:
    gains = [t.gain_us for t in extracted(twice, tmp_path).tasks]
    assert gains == sorted(gains, reverse=True)


def test_captured_inputs_give_back_what_the_model_computed(twice: Workload, tmp_path: Path) -> None:
    extraction = extracted(twice, tmp_path)
    rank, task = next((i, t) for i, t in enumerate(extraction.tasks) if t.kind == "anchor")
    loaded = load_task(task_folder(tmp_path, rank, task))
    block = twice.model.get_submodule("block")
    assert isinstance(block, Block)
    wide = twice.calls[0].kwargs["wide"]
    case = next(i for i, c in enumerate(task.cases) if c.inputs[0].shape == (2, 5, 32))
    (out,) = loaded.reference(*loaded.inputs(case))
    torch.testing.assert_close(out, block.up(block.norm(wide)))


def test_strides_and_offsets_of_captured_inputs_survive(tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Tanh())
    x = torch.randn(6, 10)[1:, ::2].t()
    extraction = extracted(Workload(model, (Call((x,)),)), tmp_path)
    loaded = load_task(task_folder(tmp_path, 0, extraction.tasks[0]))
    (again,) = loaded.inputs()
    assert (again.stride(), again.shape) == (x.stride(), x.shape)
    assert torch.equal(again, x)


def test_a_reference_runs_alone_without_hotswap(twice: Workload, tmp_path: Path) -> None:
    extraction = extracted(twice, tmp_path)
    folder = task_folder(tmp_path, 0, extraction.tasks[0])
    blocked = (
        "import sys; sys.modules['hotswap'] = None; import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", blocked, folder / "reference.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "float32" in done.stdout


def test_sizes_that_vary_together_are_found(twice: Workload, tmp_path: Path) -> None:
    extraction = extracted(twice, tmp_path)
    linear = next(t for t in extraction.tasks if t.kind == "anchor")
    assert ((0, 2), (1, 1)) in linear.size_symbols  # features in
    assert ((1, 0), (2, 0)) in linear.size_symbols  # features out


def test_tasks_beyond_top_are_listed_with_the_reason(twice: Workload, tmp_path: Path) -> None:
    extraction = extracted(twice, tmp_path, top=1)
    assert len(extraction.tasks) == 1
    assert any(s.reason == "outside --top 1" for s in extraction.skipped)


def test_a_region_of_more_inputs_than_an_op_takes_is_listed_with_the_reason(tmp_path: Path) -> None:
    class Sums(nn.Module):
        def forward(self, *parts: torch.Tensor) -> torch.Tensor:
            total = parts[0].exp()
            for part in parts[1:]:
                total = total * part + part.sin()
            return total

    torch._dynamo.reset()
    many = tuple(torch.randn(8, 8) for _ in range(70))
    extraction = extracted(Workload(Sums(), (Call(args=many),)), tmp_path)
    assert extraction.tasks == ()
    assert "it reads 70 tensors, and an op of torch takes 63 at most" in {s.reason for s in extraction.skipped}


def test_what_dynamo_does_not_trace_is_said() -> None:
    torch._dynamo.reset()
    found = capture(Workload(_Opaque(), (Call((torch.randn(2, 4),)),)))
    assert found.breaks or found.notes


class _Opaque(nn.Module):
    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()


def test_inputs_that_do_not_fit_are_an_input_error(twice: Workload) -> None:
    with pytest.raises(InputError, match="wide"):
        capture(Workload(twice.model, (Call(kwargs={"narrow": torch.randn(2, 2)}),)))


def test_a_model_that_raises_is_named_with_its_error() -> None:
    torch._dynamo.reset()
    with pytest.raises(ModelRaised, match="RuntimeError"):
        capture(Workload(nn.Linear(4, 4), (Call((torch.randn(2, 5),)),)))


def test_a_truncated_task_is_a_record_error_naming_the_file(twice: Workload, tmp_path: Path) -> None:
    extraction = extracted(twice, tmp_path)
    folder = task_folder(tmp_path, 0, extraction.tasks[0])
    text = (folder / "task.json").read_text()
    (folder / "task.json").write_text(text[: len(text) // 2])
    with pytest.raises(RecordError, match=r"task\.json"):
        load_task(folder)


def test_dynamo_s_spelling_of_a_module_becomes_its_path() -> None:
    assert module_path("L['self'].encoder.layer.0") == "encoder.layer.0"
    assert module_path("L['args'][0].model.norm") == "model.norm"
    assert module_path("L['self']") == ""


class Masked(nn.Module):
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("masked", [True, False])
def test_keys_values_and_the_mask_over_them_are_of_one_length_in_a_task_of_attention(
    masked: bool, tmp_path: Path
) -> None:
    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 3, 24, 8) for _ in range(3))
    mask = (torch.rand(2, 1, 24, 24) < 0.5,) if masked else ()
    (task,) = extracted(Workload(Masked().eval(), (Call((q, k, v, *mask)),)), tmp_path).tasks
    queries, keys = ((0, 2), (3, 2)), ((1, 2), (2, 2), (3, 3))
    wanted = {queries, keys} if masked else {queries[:1], keys[:2]}
    assert wanted <= set(task.size_symbols)


def test_shares_add_up_to_the_step_at_most_though_nodes_took_longer_than_it(twice: Workload, tmp_path: Path) -> None:
    profile = profile_of(twice.calls)
    short = replace(profile, calls=tuple(replace(c, step_us=1.0, step_samples_us=(1.0,)) for c in profile.calls))
    found = extract("tiny", capture(twice), short, tmp_path, top=8)
    assert found.tasks
    assert sum(t.share for t in found.tasks) <= 1.0
    assert found.covered == 1.0
