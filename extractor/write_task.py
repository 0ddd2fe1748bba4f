"""Write a task as its folder: the record, a reference that runs alone, and the storages of its inputs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..models.record import write_bytes, write_text
from .reference import reference_source
from .sizes import size_symbols
from .task import Task, TensorSpec
from .task_inputs import storages


def task_symbols(task: Task, module: fx.GraphModule) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the input sizes that may vary and the region's module still runs, found on tensors without memory."""
    shapes = [[s.shape for s in c.inputs] for c in task.cases]
    # Without memory a fused attention takes keys and values of unlike lengths; the few ops that it stands for do not.
    in_few_ops = sdpa_kernel(SDPBackend.MATH)
    with FakeTensorMode(), torch.no_grad(), _without_fake_tensor_talk(), in_few_ops:
        return size_symbols(module.forward, shapes, lambda s: _empty_inputs(task.cases[0].inputs, s, task.device))


def write_task(
    home: Path, task: Task, module: fx.GraphModule, tensors: Sequence[Sequence[torch.Tensor]], title: str
) -> None:
    """Write the folder `home`. module: what the task computes; tensors: the inputs of each case, in their order."""
    from safetensors.torch import save

    kept: dict[str, torch.Tensor] = {}
    for case, each in zip(task.cases, tensors, strict=True):
        kept.update(storages(case.inputs, each))
    source = reference_source(module, title) + _STANDALONE.format(specs=_spelled(task))
    write_text(home / "reference.py", source)
    write_bytes(home / "inputs.safetensors", save(kept))
    task.save(home / "task.json")


@contextlib.contextmanager
def _without_fake_tensor_talk() -> Iterator[None]:
    """Silence the log of sizes that do not fit: trying them is how the ones that do are found."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was


def _empty_inputs(specs: Sequence[TensorSpec], shapes: Sequence[tuple[int, ...]], device: str) -> list[torch.Tensor]:
    return [
        torch.empty(shape, dtype=getattr(torch, spec.dtype), device=device)
        for spec, shape in zip(specs, shapes, strict=True)
    ]


def _spelled(task: Task) -> str:
    lines = []
    for case in task.cases:
        rows = ",\n".join(
            f"        ({s.shape}, {s.stride}, {s.offset}, torch.{s.dtype}, {s.low}, {s.high}, {s.mean}, {s.std})"
            for s in case.inputs
        )
        lines.append(f'    ("{case.name}", {case.weight!r}, [\n{rows},\n    ]),')
    return "\n".join(lines)


_STANDALONE = '''

# Recorded shapes: (name, weight, [(shape, stride, offset, dtype, low, high, mean, std) of each input]).
SHAPES = [
{specs}
]


def inputs(seed, shape_index=0):
    """Return random inputs of a recorded shape, drawn from the statistics of the captured ones."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for shape, stride, offset, dtype, low, high, mean, std in SHAPES[shape_index][2]:
        length = offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride))
        if dtype.is_floating_point:
            flat = (torch.randn(length, generator=generator) * (1.0 if std is None else std) + (mean or 0.0)).to(dtype)
        else:
            flat = torch.randint(int(low or 0), int(high or 0) + 1, (length,), generator=generator).to(dtype)
        made.append(flat.as_strided(shape, stride, offset))
    return tuple(made)


if __name__ == "__main__":
    for index, (name, weight, _) in enumerate(SHAPES):
        for output in reference(*inputs(seed=0, shape_index=index)):
            print(name, weight, tuple(output.shape), output.dtype, output.double().norm().item())
'''
