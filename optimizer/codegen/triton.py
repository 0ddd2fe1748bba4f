"""Emit a loop program as a whole candidate file in Triton, with knobs a search can turn.

    program = lower(reference, example_inputs)
    for knobs in knob_space(program):
        source = emit(program, knobs)      # a Python file with `kernel(*inputs)`; needs torch and triton only

`kernel` plans once for each combination of shapes, strides and dtypes: it merges axes, chooses the tile, and keeps the
launch. A region without reductions is a tile of rows by columns a program (one row, if everything is dense); one with
reductions holds its rows whole in registers up to `whole` columns, wider ones go through a loop in as few passes as the
reductions allow, with a maximum and the sum of exponentials below it taken in one. All reductions run in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Self

from .fuse import one_plus
from .program import HALVES, LoopProgram
from .triton_loops import Tiles
from .triton_math import device_functions
from .triton_plan import RUNTIME, plan_text


@dataclass(frozen=True)
class TritonKnobs:
    """What may be turned without changing what is computed.

    tile: elements of a program's tile where nothing is reduced or several short rows share a program. whole: widest row
    that is held in registers at once. step: columns a program takes at a time in a loop. each: elements a thread, which
    gives the warps. stages: loads in flight in a loop. persistent: programs a processor that walk over all tiles, 0 for
    one program a tile. evict: tell the cache which data are read once and which again.
    """

    tile: int = 4096
    whole: int = 16384
    step: int = 4096
    each: int = 16
    stages: int = 2
    persistent: int = 0
    evict: bool = False

    def as_dict(self) -> dict[str, str | int | bool]:
        return asdict(self)

    @classmethod
    def from_dict(cls, knobs: Mapping[str, str | int | bool]) -> Self:
        """Return the knobs `as_dict` gave."""
        return cls(**knobs)  # type: ignore[arg-type]


# What each knob may be turned to, the most telling knob first.
CHOICES: dict[str, tuple[int | bool, ...]] = {
    "each": (16, 8, 32, 64),
    "whole": (16384, 65536, 4096),
    "tile": (4096, 1024, 2048, 8192),
    "step": (4096, 2048, 8192, 16384),
    "evict": (False, True),
    "stages": (2, 1, 3, 4),
    "persistent": (0, 1, 2, 4),
}


def knob_space(program: LoopProgram) -> list[TritonKnobs]:
    """Return settings worth trying, the best guess first, no two of which give the same code."""
    return list(_distinct(program, [TritonKnobs(), *_turned(TritonKnobs())]))


def neighbours(program: LoopProgram, knobs: TritonKnobs) -> list[TritonKnobs]:
    """Return the settings that differ from `knobs` in one knob and in the code."""
    return list(_distinct(program, [knobs, *_turned(knobs)]))[1:]


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


def _body(program: LoopProgram, knobs: TritonKnobs) -> str:
    """Return all but the comments; knobs that have no bearing on the program are not in it."""
    program = _fuse(program)
    tiles = Tiles(program, evict=knobs.evict)
    kernels = [_kernel(tiles, "_tile", tiles.tile(), knobs)]
    constants = {"TILE": knobs.tile, "EACH": knobs.each, "PERSISTENT": knobs.persistent, "MOST_WARPS": 32}
    if program.reduces:
        kernels.append(_kernel(tiles, "_loop", tiles.loop(), knobs))
        constants |= {"WHOLE": knobs.whole, "STEP": knobs.step, "STAGES": knobs.stages}
    code = "\n\n\n".join(kernels)
    settings = "\n".join(f"{name} = {value}" for name, value in constants.items())
    return f"""import math

import torch
import triton
import triton.language as tl
{device_functions(code)}


{code}


{settings}
_PLANS = {{}}
_MOST_PLANS = 1024
_NEAR = 2**31 - 2**20
{RUNTIME}

{plan_text(tiles)}

{_entry(program)}"""


def _kernel(tiles: Tiles, name: str, body: list[str], knobs: TritonKnobs) -> str:
    """Return a kernel whose tasks are blocks of rows, times blocks of columns where nothing is reduced."""
    constants = ["AXES", "WIDE", "ROWS", "BLOCK", *(["STAGES", "GROUP"] if name == "_loop" else [])]
    arguments = [*tiles.pointers(), "tasks", *tiles.numbers(), *(f"{c}: tl.constexpr" for c in constants)]
    inner = ["group = task"]
    if not tiles.program.reduces:
        inner = ["parts = tl.cdiv(columns, BLOCK)", "group = task // parts", "part = task % parts"]
    inner += ["if WIDE:", "    group = group.to(tl.int64)", *tiles.rows(), *body]
    lines = list(tiles.scalars())
    if knobs.persistent:
        lines.append("for task in tl.range(tl.program_id(0), tasks, tl.num_programs(0)):")
        lines += [f"    {line}" for line in inner]
    else:
        lines += ["task = tl.program_id(0)", *inner]
    plain = ["tasks", *tiles.unspecialised()]
    return "\n".join(
        [f"@triton.jit(do_not_specialize={plain})", f"def {name}({', '.join(arguments)}):"]
        + [f"    {line}" for line in lines]
    )


def _entry(program: LoopProgram) -> str:
    used = [i.name for i in program.inputs if i.used]
    names = ", ".join(i.name for i in program.inputs)
    outputs = range(len(program.outputs))
    unpacked = "".join(f"shape{n}, stride{n}, " for n in outputs)
    key = ", ".join(f"{n}.dtype, {n}.shape, {n}.stride(), {n}.device" for n in used)
    made = "\n".join(
        f"    y{n} = torch.empty_strided(shape{n}, stride{n}, dtype=torch.{program.outputs[n].dtype}, "
        f"device={used[0]}.device)"
        for n in outputs
    )
    pointers = ", ".join([*used, *(f"y{n}" for n in outputs)])
    returned = "y0" if program.single else f"({', '.join(f'y{n}' for n in outputs)},)"
    return f"""def kernel({names}):
    key = ({key})
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        plan = _PLANS[key] = _plan({names})
    {unpacked}function, grid, numbers, meta = plan
{made}
    if grid[0]:
        with torch.cuda.device_of({used[0]}):
            function[grid]({pointers}, *numbers, **meta)
    return {returned}
"""


def _fuse(program: LoopProgram) -> LoopProgram:
    half = all(o.dtype in HALVES for o in program.outputs)
    functions = {"erf": "one_plus_erf_half" if half else "one_plus_erf", "tanh": "one_plus_tanh"}
    return replace(program, code=tuple(one_plus(program.code, functions)))
