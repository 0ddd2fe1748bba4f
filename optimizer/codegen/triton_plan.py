"""The Python half of a Triton candidate: from tensors to a launch, once for each combination of shapes.

`plan_text` writes straight-line code for one program; `RUNTIME` is the part every candidate shares.
"""

from __future__ import annotations

from .plan import SHARED, plan_lines
from .triton_loops import Tiles

RUNTIME = (
    SHARED
    + """

def _strides(tensor, name, dtype, rank):
    if tensor.dtype is not dtype or tensor.dim() != rank:
        raise TypeError(f"{name}: expected {dtype} of rank {rank}, got {tensor.dtype} of rank {tensor.dim()}")
    return [0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride())]


def _device(*tensors):
    if len({tensor.device for tensor in tensors}) > 1:
        raise TypeError(f"expected all inputs on one device, got {sorted(str(t.device) for t in tensors)}")
    return tensors[0].device


def _processors(device):
    return 1 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def _power(size):
    return 1 << max(size - 1, 0).bit_length()


def _warps(lanes):
    return min(max(lanes // (32 * EACH), 1), MOST_WARPS)


def _together(rows, most, processors):
    # Short rows share a program, as long as every processor still has two programs.
    group = max(min(_power(rows), most), 1)
    while group > 1 and rows < group * processors * 2:
        group //= 2
    return group
"""
)

POINTWISE = """
    block = min(_power(columns), TILE)
    group = _together(rows, TILE // block, processors)
    tasks = -(-rows // group) * -(-columns // block)
    function = _tile
"""

REDUCTION = """
    if columns <= WHOLE:
        function, block = _tile, max(_power(columns), 16)
        group = _together(rows, TILE // block, processors)
    else:
        function, block, group = _loop, min(_power(columns), STEP), 1
        meta |= {"STAGES": STAGES, "GROUP": 8}
    tasks = -(-rows // group)
"""


def plan_text(tiles: Tiles) -> str:
    """Return the source of `_plan(*inputs)`: (shape, stride) of each output, then the launch."""
    program = tiles.program
    used = ", ".join(i.name for i in program.inputs if i.used)
    lines = [f"def _plan({', '.join(i.name for i in program.inputs)}):", *plan_lines(program)]
    lines += [
        f"    processors = _processors(_device({used}))",
        "    columns, rows = sizes[-1], math.prod(sizes[:-1])",
        "    wide = rows > _NEAR or any(abs(w[-1]) * columns > _NEAR for w in walks)",
        '    meta = {"AXES": sum(size != 1 for size in sizes[:-1]), "WIDE": wide}',
        (REDUCTION if program.reduces else POINTWISE).strip("\n"),
        '    meta |= {"ROWS": group, "BLOCK": block, "num_warps": _warps(group * block), "enable_fp_fusion": True}',
        f"    numbers = {_numbers(tiles)}",
        "    grid = min(tasks, processors * PERSISTENT) if PERSISTENT else tasks",
    ]
    made = "".join(f"shape{n}, stride{n}, " for n in range(len(program.outputs)))
    lines.append(f"    return {made}function, (grid,), (tasks, *numbers), meta")
    return "\n".join(lines) + "\n"


def _numbers(tiles: Tiles) -> str:
    """Return the expression for the integers of `Tiles.numbers`, in their order."""
    parts = ["rows", "columns", *([f"*sizes[1:{tiles.outer}]"] if tiles.outer > 1 else []), "*extra"]
    for n, access in enumerate(tiles.walks):
        parts += [f"offsets[{n}]"] if tiles.shifted[n] else []
        moves = tiles.moves(access)
        if moves or access.varies:
            begin, end = "" if moves else tiles.outer, "" if access.varies else tiles.outer
            parts.append(f"*walks[{n}][{begin}:{end}]" if begin or end or not moves else f"*walks[{n}]")
    return f"[{', '.join(parts)}]"
