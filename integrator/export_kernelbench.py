"""Write a task as a KernelBench problem, and a kernel for it as `ModelNew`: one file each that needs only torch.

The task's weights become parameters and buffers, drawn in one order in both files: one seed gives both the same.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ..extractor.load_task import LoadedTask
from ..extractor.task import TensorSpec
from ..models.errors import SpecError
from ..models.record import write_text
from ..optimizer.search import packs_weights
from .export import NATIVE_LINE
from .vendor import ROOT, foreign_imports

PROBLEM, SOLUTION = "problem.py", "solution.py"

_FUTURE = "from __future__ import annotations\n"


def export_kernelbench(loaded: LoadedTask, out: Path, kernel: str | None = None) -> tuple[Path, ...]:
    """Write `problem.py` (the first recorded shape) and, where a kernel is given, `solution.py`; return their paths.

    Raises SpecError where the folder is in use or the kernel cannot be one module: it packs weights, or needs hotswap.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SpecError(f"{out}: exists and is not empty; delete it or choose another --out")
    texts = {PROBLEM: _problem(loaded)}
    if kernel is not None:
        texts[SOLUTION] = _solution(loaded, kernel)
    for name, text in texts.items():
        write_text(out / name, text)
    return tuple(out / name for name in texts)


def _problem(loaded: LoadedTask) -> str:
    """Return the reference as `Model`, with `get_inputs` and `get_init_inputs`."""
    reference = loaded.source.partition("\n# Recorded shapes:")[0].partition('\nif __name__ == "__main__":')[0]
    specs = loaded.task.cases[0].inputs
    drawn = [_drawn(s, loaded.task.device) for s in specs if s.role != "weight"]
    body = "\n".join(f"        {text}," for text in drawn)
    return (
        f"{reference.rstrip()}\n\n\n{_module('Model', 'reference', loaded)}\n\n"
        f"def get_inputs():\n    return [\n{body}\n    ]\n\n\ndef get_init_inputs():\n    return []\n"
    )


def _solution(loaded: LoadedTask, kernel: str) -> str:
    if packs_weights(kernel):
        raise SpecError(
            f"{loaded.folder}: the kernel packs weights ahead of its calls, which ModelNew has no place for"
        )
    lines = [line for line in kernel.splitlines(keepends=True) if line != _FUTURE]
    if any(NATIVE_LINE in line for line in lines):
        native = (ROOT / "optimizer" / "native.py").read_text(encoding="utf-8").replace(_FUTURE, "")
        lines = [native, "\n\n", *(line for line in lines if NATIVE_LINE not in line)]
    text = "".join(lines)
    if "hotswap" in foreign_imports(text):
        raise SpecError(f"{loaded.folder}: the kernel imports hotswap other than by {NATIVE_LINE!r}; it is no one file")
    head = "" if "torch" in _imported(text) else "import torch\n"
    return f"{_FUTURE}\n{head}{text.rstrip()}\n\n\n{_module('ModelNew', 'kernel', loaded)}"


def _imported(text: str) -> set[str]:
    """Return the names that plain imports at the top of a file bind."""
    nodes = [n for n in ast.parse(text).body if isinstance(n, ast.Import)]
    return {alias.asname or alias.name for node in nodes for alias in node.names}


def _module(name: str, function: str, loaded: LoadedTask) -> str:
    """Return the class that holds the weights and calls `function`; one output is returned as itself."""
    task = loaded.task
    specs = task.cases[0].inputs
    kept = [f"        {_kept(s, task.device)}" for s in specs if s.role == "weight"]
    given = ", ".join(s.name for s in specs if s.role != "weight")
    passed = ", ".join(f"self.{_word(s)}" if s.role == "weight" else s.name for s in specs)
    return _CLASS.format(
        name=name,
        weights="\n".join(["        super().__init__()", *kept]),
        given=given,
        call=f"{function}({passed})",
        returned="outputs[0] if isinstance(outputs, tuple) and len(outputs) == 1 else outputs",
    )


_CLASS = """class {name}(torch.nn.Module):
    def __init__(self):
{weights}

    def forward(self, {given}):
        outputs = {call}
        return {returned}
"""


def _word(spec: TensorSpec) -> str:
    """Return the attribute's name: one that no module has already."""
    return f"{spec.name}_" if spec.name in ("training", "forward", "call_super_init", "dump_patches") else spec.name


def _kept(spec: TensorSpec, device: str) -> str:
    value = _drawn(spec, device)
    if re.match(r"b?float", spec.dtype):
        return f"self.{_word(spec)} = torch.nn.Parameter({value}, requires_grad=False)"
    return f'self.register_buffer("{_word(spec)}", {value})'


def _drawn(spec: TensorSpec, device: str) -> str:
    """Return the expression of a tensor of the recorded size, strides, dtype and statistics."""
    reach = spec.offset + 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True))
    length = max(reach, 1) if 0 not in spec.shape else 1
    if re.match(r"b?float", spec.dtype):
        mean, std = spec.mean or 0.0, 1.0 if spec.std is None else spec.std
        flat = f"torch.randn({length}, device={device!r}) * {std!r} + {mean!r}"
    else:
        flat = f"torch.randint({int(spec.low or 0)}, {int(spec.high or 0) + 1}, ({length},), device={device!r})"
    return f"({flat}).to(torch.{spec.dtype}).as_strided({spec.shape}, {spec.stride}, {spec.offset})"
