"""Emit a loop program as a whole candidate file in Triton, with knobs a search can turn.

    program = lower(reference, example_inputs)
    for knobs in knob_space(program):
        source = emit(program, knobs)      # a Python file with `kernel(*inputs)`; it needs torch and triton only

`kernel` plans once for each combination of shapes, strides and dtypes: it merges axes, chooses tile and form, and keeps
the launch. Where nothing is reduced, a program has a tile of rows by columns, one row if everything is dense. Where
something is, rows up to `whole` columns are held in registers and read once, in two tiles where one would leave lanes
idle; wider ones go through a loop in as few passes as the reductions allow, a maximum and the sum of exponentials below
it together; rows that begin at odd places are peeled to alignment; where rows are few, or memory runs down the rows,
several programs share them and another kernel combines their parts. An axis of pieces (`unroll.py`) is no loop: all
pieces of a row are made together. All sums run in a fixed order: the same input gives the same bits.

Lengths do not compile anew: sizes are plain integers, of which Triton knows whether they are 1 or divisible by 16; tile
sizes are powers of two of the width. Offsets of rows have 64 bits, those inside a tile 32 unless the tensor needs more.

Unlike C++ on the CPU, an index out of range raises no IndexError: a GPU has no way to, and an assertion would take the
whole process's context down. Such a lane reads no memory; it yields NaN for floats and 0 for integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Self

from .fuse import one_plus
from .program import HALVES, Load, LoopProgram
from .triton_loops import Tiles
from .triton_math import device_functions
from .triton_passes import Passes
from .triton_plan import RUNTIME, plan_text
from .triton_tile import Tile
from .unroll import unrolled


@dataclass(frozen=True)
class TritonKnobs:
    """What may be turned without changing what is computed.

    tile: elements of a program's tile where nothing is reduced or several short rows share a program.
    whole: widest row that is held in registers at once.
    step: columns a program takes at a time in a loop.
    each: elements a thread, which gives the warps.
    stages: steps of a loop, or tiles of a persistent program, that are under way.
    persistent: programs a processor that walk over all tiles, 0 for one program a tile.
    evict: tell the cache which data are read once and which again.
    fit: hold a row whose width is no power of two in two tiles, where that leaves fewer lanes idle.
    ahead: read all that a row needs before its first reduction, what all rows share before the first row.
    peel: start wide rows that begin anywhere in memory at a 16-byte boundary; what is left at both ends is taken apart.
    split: programs a processor should have; where rows are too few for that, several share a row and another kernel
    combines what they found. 0 for never.
    tall: rows a program takes where memory runs down the rows, as in sums over a first dimension.
    early: launch a kernel before the one it follows has ended, and let it wait for that on the device (programmatic
    dependent launch), where the device can.
    registers: at most so many a thread, which lets more programs share a processor; 0 for any.
    packed: hold a row across a reduction as it was loaded, and compute anew what was made of it: fewer registers.
    """

    tile: int = 4096
    whole: int = 16384
    step: int = 4096
    each: int = 16
    stages: int = 2
    persistent: int = 0
    evict: bool = False
    fit: bool = True
    ahead: bool = True
    peel: bool = True
    split: int = 4
    tall: int = 64
    early: bool = False
    registers: int = 0
    packed: bool = False

    def as_dict(self) -> dict[str, str | int | bool]:
        return asdict(self)

    @classmethod
    def from_dict(cls, knobs: Mapping[str, str | int | bool]) -> Self:
        """Return the knobs `as_dict` gave."""
        return cls(**knobs)  # type: ignore[arg-type]


# What each knob may be turned to, the most telling knob first.
CHOICES: dict[str, tuple[int | bool, ...]] = {
    "early": (True, False),
    "packed": (True, False),
    "registers": (32, 64, 40, 48, 0),
    "each": (16, 32, 64, 8),
    "split": (16, 32, 4, 8, 0),
    "tall": (64, 128, 256, 32),
    "tile": (4096, 8192, 2048, 1024, 16384),
    "evict": (False, True),
    "fit": (True, False),
    "ahead": (True, False),
    "stages": (2, 3, 4, 1),
    "whole": (16384, 65536, 4096),
    "step": (4096, 2048, 8192, 16384),
    "peel": (True, False),
    "persistent": (0, 4, 16, 32, 2, 1),
}

# Where to start from, several knobs apart, so that a short search sees settings that differ in kind: occupancy against
# registers, many programs against few that fetch the next rows meanwhile, loads through shared memory against none.
ROWS: tuple[dict[str, int | bool], ...] = (
    {}, {"packed": True, "ahead": False, "early": True, "registers": 32},
    {"each": 32, "packed": True, "ahead": False, "early": True, "registers": 64}, {"early": True},
    {"each": 32, "evict": True, "early": True}, {"each": 8, "packed": True, "ahead": False, "early": True},
    {"each": 32, "fit": False, "early": True}, {"packed": True, "ahead": False, "early": True},
    {"tile": 8192, "packed": True, "ahead": False, "early": True}, {"each": 32, "ahead": False, "early": True},
    {"whole": 4096, "stages": 1, "evict": True, "early": True}, {"each": 32, "persistent": 4, "early": True},
)  # fmt: skip
TALL: tuple[dict[str, int | bool], ...] = (
    {"each": 64, "tile": 8192, "stages": 1, "split": 16, "early": True},
    {"each": 64, "tile": 8192, "stages": 1, "split": 32, "early": True},
    {"each": 64, "tile": 8192, "stages": 1, "split": 16, "tall": 256, "early": True},
    {"each": 64, "tile": 8192, "stages": 2, "split": 8, "early": True},
    {"each": 32, "stages": 1, "split": 32, "early": True}, {"each": 64, "tile": 8192, "stages": 1, "split": 16},
    {"each": 64, "tile": 16384, "stages": 4, "split": 0, "early": True},
    {"each": 64, "tile": 8192, "stages": 1, "split": 8, "early": True}, {"each": 64},
)  # fmt: skip
POINTWISE: tuple[dict[str, int | bool], ...] = (
    {}, {"each": 8}, {"each": 8, "early": True}, {"each": 8, "tile": 2048}, {"early": True}, {"each": 32, "tile": 8192},
)  # fmt: skip
PIECES: tuple[dict[str, int | bool], ...] = (
    {"each": 8, "tile": 2048}, {"each": 8, "tile": 2048, "early": True}, {"each": 8, "early": True},
    {"each": 4, "tile": 1024, "early": True}, {"each": 8, "tile": 1024, "early": True}, {"each": 8},
    {"each": 4, "tile": 2048}, {},
)  # fmt: skip


def knob_space(program: LoopProgram) -> list[TritonKnobs]:
    """Return settings worth trying, the best guesses first, no two of which give the same code."""
    guesses = _guesses(program)
    return list(_distinct(program, [*guesses, *_turned(guesses[0])]))


def around(program: LoopProgram, knobs: TritonKnobs) -> list[TritonKnobs]:
    """Return what to try once `knobs` are the best known: the other best guesses, then its neighbours."""
    return list(_distinct(program, [knobs, *_guesses(program), *_turned(knobs)]))[1:]


def _guesses(program: LoopProgram) -> list[TritonKnobs]:
    if program.reduces:
        turned = TALL if _reads_down(program) else ROWS
    else:
        turned = PIECES if unrolled(program).unrolled is not None else POINTWISE
    return [TritonKnobs.from_dict(TritonKnobs().as_dict() | t) for t in turned]


def _reads_down(program: LoopProgram) -> bool:
    """Whether rows run across memory where inputs are dense: nothing's last dimension is the columns."""
    ends = [[t.axis for t in item.index[-1].terms] for item in program.code if isinstance(item, Load) and item.index]
    return not any(program.column in axes for axes in ends)


def _turned(knobs: TritonKnobs) -> Iterator[TritonKnobs]:
    for name, choices in CHOICES.items():
        for choice in choices:
            if choice != knobs.as_dict()[name]:
                yield TritonKnobs.from_dict(knobs.as_dict() | {name: choice})


def _distinct(program: LoopProgram, settings: Iterable[TritonKnobs]) -> Iterator[TritonKnobs]:
    seen = set()
    for knobs in settings:
        code = _body(program, knobs)
        if code not in seen:
            seen.add(code)
            yield knobs


def emit(program: LoopProgram, knobs: TritonKnobs) -> str:
    """Return the text of a candidate file that computes `program`."""
    description = "\n".join(f"# {line}" for line in str(program).splitlines())
    turned = ", ".join(f"{name}={value}" for name, value in knobs.as_dict().items())
    return f'"""A loop program in Triton ({turned})."""\n\n{description}\n\n{_body(program, knobs)}'


@lru_cache(maxsize=256)
def _body(program: LoopProgram, knobs: TritonKnobs) -> str:
    """Return all but the comments; knobs that have no bearing on the program are not in it."""
    program = _fuse(unrolled(program))
    tiles = Tiles(program, evict=knobs.evict)
    tile = Tile(tiles, ahead=knobs.ahead, packed=knobs.packed)
    kernels = [_kernel(tiles, "_tile", [*tile.common(), *_tasks(tiles, tile.block(), knobs)])]
    constants: dict[str, object] = {"TILE": knobs.tile, "EACH": knobs.each, "PERSISTENT": knobs.persistent}
    constants |= {"EARLY": knobs.early, "REGISTERS": knobs.registers}
    partials: list[tuple[str, str]] = []
    if program.reduces:
        passes = Passes(tiles)
        varying = tuple(n for n, a in enumerate(tiles.walks) if a.varies)
        kernels.append(_kernel(tiles, "_loop", _tasks(tiles, passes.plain(), knobs), _LOOP))
        fit, peel = knobs.fit and tile.divides, knobs.peel and not tiles.wider()
        if fit:
            both = [*tile.common(fitted=True), *_tasks(tiles, tile.block(fitted=True), knobs)]
            kernels.append(_kernel(tiles, "_fit", both, ("REST", "LAST")))
        if peel:
            flags = ("PEEL", *(f"L{n}" for n in varying))
            kernels.append(_kernel(tiles, "_peel", _tasks(tiles, passes.peeled(), knobs), (*_LOOP, *flags)))
        if knobs.split:
            partials = passes.partials()
            kernels += [_split(tiles, n, passes.split(n), partials) for n in range(passes.stages)]
        splits = f"({''.join(f'_split{n}, ' for n in range(passes.stages))})" if knobs.split else "()"
        constants |= {"WHOLE": knobs.whole, "STEP": knobs.step, "STAGES": knobs.stages, "TALL": knobs.tall}
        constants |= {"SPLIT": knobs.split, "SPLITS": splits, "LEAD": passes.lead(), "VARYING": varying}
        constants |= {"FIT": fit, "PEEL": passes.peel() if peel else 0, "VECTOR": passes.peel()}
    code = "\n\n\n".join(kernels)
    settings = "\n".join(f"{name} = {value}" for name, value in constants.items())
    return f"""import math

import torch
import triton
import triton.language as tl

{device_functions(code)}


{code}


{settings}
MOST_WARPS = 32
_PLANS = {{}}
_MOST_PLANS = 1024
_NEAR = 2**31 - 2**20
{RUNTIME}

{plan_text(tiles)}

{_entry(program, partials)}"""


_LOOP = ("STAGES", "GROUP", "FOLD")
# Behind the wait all that went before is done, inputs too; what follows may be launched, and waits in its turn.
_WAIT = ("if SOON:", "    tl.extra.cuda.gdc_wait()", "    tl.extra.cuda.gdc_launch_dependents()")


def _tasks(tiles: Tiles, body: list[str], knobs: TritonKnobs) -> list[str]:
    """Return the statements of a program, whose tasks are blocks of rows (and of columns if nothing is reduced)."""
    inner = ["group = task"]
    if not tiles.program.reduces:
        inner = ["parts = tl.cdiv(columns, BLOCK)", "group = task // parts", "part = task % parts"]
    inner += [*tiles.rows(), *body]
    if not knobs.persistent:
        return ["task = tl.program_id(0)", *inner]
    loop = f"for task in tl.range(tl.program_id(0), tasks, tl.num_programs(0), num_stages={knobs.stages}):"
    return [loop, *(f"    {line}" for line in inner)]


def _split(tiles: Tiles, number: int, body: list[str], partials: list[tuple[str, str]]) -> str:
    """Return the kernel of one pass over rows that several programs share."""
    groups = [
        "task = tl.program_id(0)",
        "groups = tl.cdiv(rows, ROWS)",
        "group = task % groups",
        "share = task // groups",
    ]
    names = [name for name, _ in partials]
    return _kernel(tiles, f"_split{number}", [*groups, *tiles.rows(), *body], (*_LOOP, "MOST"), names)


def _kernel(
    tiles: Tiles, name: str, body: list[str], constants: tuple[str, ...] = (), partials: list[str] | None = None
) -> str:
    constants = ("AXES", "WIDE", "EIGHT", "EVEN", "SOON", "HIDE", "LIVE", "FULL", "ROWS", "BLOCK", *constants)
    arguments = [*tiles.pointers(), *(partials or []), "tasks", *tiles.numbers()]
    arguments += ["shares", "chunk"] if partials else []
    arguments += [f"{c}: tl.constexpr" for c in constants]
    plain = ["tasks", *tiles.unspecialised(), *(["shares"] if partials else [])]
    return "\n".join(
        [f"@triton.jit(do_not_specialize={plain})", f"def {name}({', '.join(arguments)}):"]
        + [f"    {line}" for line in [*_WAIT, *tiles.scalars(), *body]]
    )


def _entry(program: LoopProgram, partials: list[tuple[str, str]]) -> str:
    used = [i.name for i in program.inputs if i.used]
    names = ", ".join(i.name for i in program.inputs)
    outputs = range(len(program.outputs))
    unpacked = "".join(f"shape{n}, stride{n}, " for n in outputs)
    key = ", ".join(f"{n}.dtype, {n}.shape, {n}.stride(), {n}.device" for n in used)
    device = f"device={used[0]}.device"
    lines = [
        f"    y{n} = torch.empty_strided(shape{n}, stride{n}, dtype=torch.{program.outputs[n].dtype}, {device})"
        for n in outputs
    ]
    tensors = ", ".join([*used, *(f"y{n}" for n in outputs)])
    if partials:
        lines += ["    parts = ()", "    if partial:"]
        made = ", ".join(f"torch.empty(partial, dtype=torch.{dtype}, {device})" for _, dtype in partials)
        lines.append(f"        parts = ({made},)")
    rest = "*parts, *numbers" if partials else "*numbers"
    lines += [
        "    if grids[0][0]:",
        f"        with torch.cuda.device_of({used[0]}):",
        "            for function, grid, meta in zip(functions, grids, metas):",
        f"                function[grid]({tensors}, {rest}, **meta)",
    ]
    returned = "y0" if program.single else f"({', '.join(f'y{n}' for n in outputs)},)"
    body = "\n".join(lines)
    return f"""def kernel({names}):
    key = ({key})
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        plan = _PLANS[key] = _plan({names})
    {unpacked}functions, grids, numbers, metas, partial = plan
{body}
    return {returned}
"""


def _fuse(program: LoopProgram) -> LoopProgram:
    half = all(o.dtype in HALVES for o in program.outputs)
    functions = {"erf": "one_plus_erf_half" if half else "one_plus_erf", "tanh": "one_plus_tanh"}
    return replace(program, code=tuple(one_plus(program.code, functions)))
