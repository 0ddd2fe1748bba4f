"""The Python half of a C++ candidate: from tensors to packed numbers, once for each combination of shapes.

`plan_text` writes straight-line code for one program; `RUNTIME` is the part every candidate shares.
"""

from __future__ import annotations

from .plan import SHARED, accesses, plan_lines
from .program import LoopProgram

RUNTIME = (
    SHARED
    + """

def _strides(tensor, name, dtype, rank):
    if tensor.dtype is not dtype or tensor.dim() != rank or tensor.device.type != "cpu":
        got = f"{tensor.dtype} of rank {tensor.dim()} on {tensor.device}"
        raise TypeError(f"{name}: expected {dtype} of rank {rank} on the CPU, got {got}")
    return [0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride())]
"""
)


def plan_text(program: LoopProgram) -> str:
    """Return the source of `_plan(*inputs)`: (shape, stride) of each output, then the numbers the native code reads."""
    lines = [f"def _plan({', '.join(i.name for i in program.inputs)}):", *plan_lines(program)]
    columns = ", ".join(str(n) for n, a in enumerate(accesses(program)) if a.varies)
    lines.append(f"    unit = sizes[-1] <= 1 or all(walks[n][-1] == 1 for n in [{columns}])")
    lines.append("    numbers = [unit, *sizes, *extra]")
    lines.append("    for offset, walk in zip(offsets, walks):")
    lines.append("        numbers += [offset, *walk]")
    lines.append("    packed = (ctypes.c_int64 * len(numbers))(*numbers)")
    made = "".join(f"shape{n}, stride{n}, " for n in range(len(program.outputs)))
    lines.append(f"    return {made}ctypes.addressof(packed), packed")
    return "\n".join(lines) + "\n"
