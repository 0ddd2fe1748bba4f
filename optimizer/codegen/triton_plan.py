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


def _soon(device):
    # Whether kernels are launched before the one they follow has ended: devices can since capability 9.0.
    return EARLY and device.type != "cpu" and torch.cuda.get_device_properties(device).major >= 9


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


def _alike(walk, lead, shift, elements):
    # Whether an access meets a 16-byte boundary where the leading one does, in every row.
    return walk[-1] == 1 and shift % elements == 0 and all((a - b) % elements == 0 for a, b in zip(walk[:-1], lead))
"""
)

POINTWISE = """
    block = min(_power(columns), TILE)
    group = _together(rows, TILE // block, processors)
    tasks = -(-rows // group) * -(-columns // block)
    functions, partial = (_tile,), None
"""

REDUCTION = """
    lead = walks[LEAD]
    tall = lead[-1] != 1 and lead[-2:-1] == [1] and rows > 1
    few = SPLIT and rows * 4 <= processors and columns > 2 * STEP
    functions, partial = (_loop,), None
    if tall:  # memory runs down the rows
        group = min(_power(rows), TALL)
        block = max(min(_power(columns), TILE // group), 16)
        functions = (_tile,) if columns <= block else functions
        meta["EVEN"] = rows % 16 == 0
    elif columns <= WHOLE and not few:
        functions, block = (_tile,), max(_power(columns), 16)
        rest = _power(columns - block // 2)
        group = _together(rows, TILE // block, processors)
        if FIT and columns >= 256 and rest <= block // 4:  # two tiles leave fewer lanes idle than one
            functions, block, group, meta["REST"] = (_fit,), block // 2, 1, max(rest, 16)
            meta["LAST"] = columns == block + meta["REST"]
    else:
        block, group = max(min(_power(columns), STEP), 16), 1
    tasks = groups = -(-rows // group)
    if functions == (_loop,):
        meta |= {"STAGES": STAGES, "GROUP": 8, "FOLD": 1}
        shares = min(-(-processors * SPLIT // max(groups, 1)), -(-columns // (2 * block)), 256)
        if shares > 1 and groups:
            chunk = -(-columns // shares // block) * block
            shares = -(-columns // chunk)
            functions, partial, tasks = SPLITS, (shares, rows), groups * shares
            meta |= {"MOST": _power(shares), "shares": shares, "chunk": chunk}
        elif PEEL and not wide:
            alike = [_alike(w, lead, offset - offsets[LEAD], PEEL) for w, offset in zip(walks, offsets)]
            if alike[LEAD] and (offsets[LEAD] % PEEL or any(step % PEEL for step in lead[:-1])):
                functions = (_peel,)
                meta |= {"PEEL": PEEL} | {f"L{n}": alike[n] for n in VARYING}
"""

# The last kernel only combines what little is left: few rows a program, so that all processors take part.
COMBINING = """
    if partial and programs:
        group = min(group, 32)
        grids[-1] = (-(-rows // group),)
        metas[-1] = meta | {"ROWS": group, "num_warps": min(max(group * meta["MOST"] // 256, 1), 8)}
"""


def plan_text(tiles: Tiles) -> str:
    """Return the source of `_plan(*inputs)`: (shape, stride) of each output, then the launches."""
    program = tiles.program
    used = ", ".join(i.name for i in program.inputs if i.used)
    lines = [f"def _plan({', '.join(i.name for i in program.inputs)}):", *plan_lines(program)]
    lines += [
        f"    device = _device({used})",
        "    processors, soon = _processors(device), _soon(device)",
        "    columns, rows = sizes[-1], math.prod(sizes[:-1])",
        "    wide = rows > _NEAR or any(abs(w[-1]) * columns > _NEAR for w in walks)",
        f"    steps = [columns, *offsets, *(step for n in {_places(tiles)} for step in walks[n][:-1])]",
        "    eight = math.gcd(*steps) % 16 == 8",
        '    meta = {"AXES": sum(size != 1 for size in sizes[:-1]), "WIDE": wide, "EIGHT": eight, "EVEN": False}',
        '    meta |= {"SOON": soon, "HIDE": device.type != "cpu"} | ({"launch_pdl": True} if soon else {})',
        '    meta |= {"maxnreg": REGISTERS} if REGISTERS else {}',
        (REDUCTION if program.reduces else POINTWISE).strip("\n"),
        "    warps = _warps(group * block)",
        '    whole = columns > 0 and (columns % block == 0 or "REST" in meta) and "PEEL" not in meta',
        '    meta |= {"LIVE": rows % group == 0, "FULL": whole}',
        '    if "REST" in meta:  # so few that each has 16 bytes of the rest',
        '        warps = max(warps // 2, min(warps, meta["REST"] // 256), 1)',
        '    if "FOLD" in meta:',
        '        meta["FOLD"] = min(max(group * block // (warps * 32 * VECTOR), 1), block)',
        '    meta |= {"ROWS": group, "BLOCK": block, "num_warps": warps, "enable_fp_fusion": True}',
        f"    numbers = {_numbers(tiles)}",
        "    programs = min(tasks, processors * PERSISTENT) if PERSISTENT and not partial else tasks",
        "    grids, metas = [(programs,)] * len(functions), [meta] * len(functions)",
    ]
    if program.reduces and tiles.passes[-1].reduces:
        lines += [COMBINING.strip("\n")]
    made = "".join(f"shape{n}, stride{n}, " for n in range(len(program.outputs)))
    lines.append(f"    return {made}functions, grids, (tasks, *numbers), metas, partial")
    return "\n".join(lines) + "\n"


def _places(tiles: Tiles) -> list[int]:
    """Return the accesses of tensors that are elsewhere in another row."""
    return [n for n, a in enumerate(tiles.walks) if a.tensor and tiles.moves(a)]


def _numbers(tiles: Tiles) -> str:
    """Return the expression for the integers of `Tiles.numbers`, in their order."""
    parts = ["rows", "columns", *([f"*sizes[1:{tiles.outer}]"] if tiles.outer > 1 else []), "*extra"]
    for n, access in enumerate(tiles.walks):
        parts += [f"offsets[{n}]"] if tiles.shifted[n] else []
        if tiles.like[n] != n:
            continue
        moves, count = tiles.moves(access), tiles.counts[n]
        if count > 1:
            parts += [f"*walks[{n}][:{tiles.outer}]"] if moves else []
            parts.append(f"walks[{n}][-1] // {count}")
        elif moves or access.varies:
            begin, end = "" if moves else tiles.outer, "" if access.varies else tiles.outer
            parts.append(f"*walks[{n}][{begin}:{end}]" if begin or end or not moves else f"*walks[{n}]")
    return f"[{', '.join(parts)}]"
