"""Task folders small enough to be judged in a second or two, written as the extractor writes them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hotswap.extractor.task import ShapeCase, Task, TensorSpec
from hotswap.optimizer.judge import Judge
from hotswap.optimizer.judge.hall import Hall
from hotswap.optimizer.judge.trial import Patience

Symbols = tuple[tuple[tuple[int, int], ...], ...]


def write_task(
    folder: Path,
    reference: str,
    cases: Sequence[dict[str, torch.Tensor]],
    *,
    weights: Sequence[str] = (),
    symbols: Symbols = (),
    outputs: int = 1,
    device: str = "cpu",
) -> Path:
    """Write a task folder from the text of its reference and the inputs of each case."""
    folder.mkdir(parents=True)
    (folder / "reference.py").write_text(textwrap.dedent(reference))
    kept: dict[str, torch.Tensor] = {}
    recorded = []
    for number, inputs in enumerate(cases):
        specs = []
        for name, tensor in inputs.items():
            key = f"case{number}.{name}"
            raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            kept[key] = raw.set_(tensor.untyped_storage()).cpu().clone()
            values = tensor.double()
            specs.append(
                TensorSpec(
                    name, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()),
                    str(tensor.dtype).removeprefix("torch."), "weight" if name in weights else "activation", key, None,
                    values.min().item(), values.max().item(), values.mean().item(), values.std(correction=0).item(),
                )
            )  # fmt: skip
        recorded.append(ShapeCase(f"case{number}", tuple(specs), 1, 1.0, 100.0))
    save_file(kept, folder / "inputs.safetensors")
    task = Task(
        name=folder.name, fingerprint="0" * 16, kind="memory", device=device, ops=("aten.mul",), inputs=tuple(cases[0]),
        outputs=outputs, cases=tuple(recorded), sites=(), eager_us=100.0, floor_us=10.0, share=0.1, ceiling=1.1,
        size_symbols=symbols,
    )  # fmt: skip
    task.save(folder / "task.json")
    return folder


RMSNORM = """
    import torch

    def reference(x, weight):
        wide = x.to(torch.float32)
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (weight * scaled.to(x.dtype),)
"""


def rmsnorm(folder: Path, dtype: torch.dtype, rows: int = 24, width: int = 64, device: str = "cpu") -> Path:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, width, generator=generator).to(dtype)
    weight = (1 + 0.1 * torch.randn(width, generator=generator)).to(dtype)
    symbols: Symbols = (((0, 0),), ((0, 1), (1, 0)))
    inputs = {"x": x.to(device), "weight": weight.to(device)}
    return write_task(folder, RMSNORM, [inputs], weights=["weight"], symbols=symbols, device=device)


@pytest.fixture
def make_task(tmp_path: Path) -> Callable[..., Path]:
    """Write a task folder of this test's own."""

    def make(reference: str, *cases: dict[str, torch.Tensor], **facts: Any) -> Path:
        return write_task(tmp_path / "task", reference, cases, **facts)

    return make


@pytest.fixture(scope="session")
def halls() -> Iterator[Callable[[str], Hall]]:
    """One hall a device for the whole session: it takes seconds to start."""
    open_halls: dict[str, Hall] = {}

    def hall(device: str = "cpu") -> Hall:
        if device not in open_halls:
            with pytest.MonkeyPatch.context() as patch:
                if device == "cpu":  # Triton reads it when it is first imported, and workers inherit the hall's
                    patch.setenv("TRITON_INTERPRET", "1")
                open_halls[device] = Hall(threads=1, device=device)
        return open_halls[device]

    yield hall
    for opened in open_halls.values():
        opened.close()


@pytest.fixture(scope="session")
def quick(halls: Callable[[str], Hall]) -> Callable[[Path], Judge]:
    """Judges whose timing is only long enough to run: what they time means nothing, what they reject does."""

    def make(folder: Path) -> Judge:
        return Judge(
            folder, seed=5, block_s=0.002, rounds=2, pool_bytes=1 << 18, inductor=False,
            patience=Patience(load_s=30.0, call_s=3.0), hall=halls(Task.load(folder / "task.json").device),
        )  # fmt: skip

    return make


@pytest.fixture(scope="session")
def judge32(tmp_path_factory: pytest.TempPathFactory, quick: Callable[[Path], Judge]) -> Iterator[Judge]:
    """A judge of an fp32 RMSNorm, shared by all candidates of a session as a search would."""
    with quick(rmsnorm(tmp_path_factory.mktemp("fp32") / "rmsnorm", torch.float32)) as court:
        yield court


@pytest.fixture(scope="session")
def judge16(tmp_path_factory: pytest.TempPathFactory, quick: Callable[[Path], Judge]) -> Iterator[Judge]:
    """The same in bf16."""
    with quick(rmsnorm(tmp_path_factory.mktemp("bf16") / "rmsnorm", torch.bfloat16)) as court:
        yield court


@pytest.fixture(scope="session")
def judge_half(tmp_path_factory: pytest.TempPathFactory, quick: Callable[[Path], Judge]) -> Iterator[Judge]:
    """The same in fp16."""
    with quick(rmsnorm(tmp_path_factory.mktemp("fp16") / "rmsnorm", torch.float16)) as court:
        yield court


@pytest.fixture(scope="session")
def judge_double(tmp_path_factory: pytest.TempPathFactory, quick: Callable[[Path], Judge]) -> Iterator[Judge]:
    """An RMSNorm in fp64 throughout."""
    draws = torch.Generator().manual_seed(3)
    inputs = {
        "x": torch.randn(12, 32, generator=draws, dtype=torch.float64),
        "weight": torch.randn(32, generator=draws, dtype=torch.float64),
    }
    folder = tmp_path_factory.mktemp("fp64") / "rmsnorm"
    reference = RMSNORM.replace("x.to(torch.float32)", "x")
    with quick(write_task(folder, reference, [inputs], weights=["weight"], symbols=(((0, 0),), ((0, 1), (1, 0))))) as c:
        yield c
