"""Emit a loop program as a whole candidate file: Python around C++ in a string, with knobs a search can turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, Self

from .cpp_loops import STORED, Loops, vector_math
from .cpp_plan import RUNTIME, plan_text
from .fuse import one_plus
from .program import HALVES, Compute, Instruction, LoopProgram, Reduce

Keep = Literal["dear", "all", "none"]
KEEP_ABOVE = {"all": 3.0, "dear": 10.0, "none": float("inf")}


@dataclass(frozen=True)
class CppKnobs:
    """What may be turned without changing what is computed.

    grain: elements of the iteration space a thread should get at least. block: columns a thread takes at a time where
    nothing is reduced. keep: which values are kept in a row buffer between passes instead of being computed again.
    width: vector width in bits the compiler prefers. unroll: let it unroll loops. hoist: widen what varies only along
    the row (weights) once a thread, not once a row.
    """

    grain: int = 16384
    block: int = 4096
    keep: Keep = "all"
    width: Literal[256, 512] = 512
    unroll: bool = False
    hoist: bool = False

    def as_dict(self) -> dict[str, str | int | bool]:
        return asdict(self)

    @classmethod
    def from_dict(cls, knobs: Mapping[str, str | int | bool]) -> Self:
        """Return the knobs `as_dict` gave."""
        return cls(**knobs)  # type: ignore[arg-type]


# What each knob may be turned to, the most telling knob first.
CHOICES: dict[str, tuple[str | int | bool, ...]] = {
    "keep": ("all", "dear", "none"),
    "hoist": (False, True),
    "unroll": (False, True),
    "width": (512, 256),
    "grain": (16384, 4096, 65536),
    "block": (4096, 1024, 16384),
}


def knob_space(program: LoopProgram) -> list[CppKnobs]:
    """Return settings worth trying, the best guess first, no two of which give the same code."""
    return list(_distinct(program, [CppKnobs(), *_turned(CppKnobs()), CppKnobs(hoist=True, unroll=True)]))


def neighbours(program: LoopProgram, knobs: CppKnobs) -> list[CppKnobs]:
    """Return the settings that differ from `knobs` in one knob and in the code."""
    return list(_distinct(program, [knobs, *_turned(knobs)]))[1:]


def _turned(knobs: CppKnobs) -> Iterator[CppKnobs]:
    for name, choices in CHOICES.items():
        for choice in choices:
            if choice != knobs.as_dict()[name]:
                yield CppKnobs.from_dict(knobs.as_dict() | {name: choice})


def _distinct(program: LoopProgram, settings: Iterable[CppKnobs]) -> Iterator[CppKnobs]:
    program = _fuse(program)
    seen = set()
    for knobs in settings:
        code = (_native(program, knobs), _flags(knobs))
        if code not in seen:
            seen.add(code)
            yield knobs


def emit(program: LoopProgram, knobs: CppKnobs) -> str:
    """Return the text of a candidate file that computes `program`."""
    program = _fuse(program)
    used = [i.name for i in program.inputs if i.used]
    names = ", ".join(i.name for i in program.inputs)
    outputs = range(len(program.outputs))
    unpacked = "".join(f"shape{n}, stride{n}, " for n in outputs)
    key = ", ".join(f"{n}.dtype, {n}.shape, {n}.stride()" for n in used)
    made = "\n".join(
        f"    y{n} = torch.empty_strided(shape{n}, stride{n}, dtype=torch.{program.outputs[n].dtype})" for n in outputs
    )
    pointers = ", ".join(f"{n}.data_ptr()" for n in [*used, *(f"y{n}" for n in outputs)])
    returned = "y0" if program.single else f"({', '.join(f'y{n}' for n in outputs)},)"
    description = "\n".join(f"# {line}" for line in str(program).splitlines())
    turned = ", ".join(f"{name}={value}" for name, value in knobs.as_dict().items())
    return f'''"""A loop program in C++ ({turned})."""

{description}

import ctypes

import torch

from hotswap.optimizer.native import DEFAULT_FLAGS, compile_cpp

SOURCE = r"""
{_native(program, knobs)}"""

_NATIVE = compile_cpp(SOURCE, flags=(*DEFAULT_FLAGS, {", ".join(repr(f) for f in _flags(knobs))})).run
_NATIVE.argtypes = [ctypes.c_void_p] * {len(used) + len(program.outputs) + 1}
_NATIVE.restype = ctypes.c_int
_PLANS = {{}}
_MOST_PLANS = 1024

{RUNTIME}

{plan_text(program)}

def kernel({names}):
    key = ({key})
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _MOST_PLANS:
            _PLANS.clear()
        plan = _PLANS[key] = _plan({names})
    {unpacked}numbers, _ = plan
{made}
    if _NATIVE({pointers}, numbers):
        raise IndexError("index out of range in self")
    return {returned}
'''


def _flags(knobs: CppKnobs) -> tuple[str, ...]:
    return (f"-mprefer-vector-width={knobs.width}", *(("-funroll-loops",) if knobs.unroll else ()))


def _fuse(program: LoopProgram) -> LoopProgram:
    """Return the program with cheaper functions where the context allows.

    1 + erf(x) needs no polynomial of its own near 0, and no full precision where every result is rounded to half.
    exp(x - max of x), what a softmax is made of, never meets a positive argument.
    """
    name = "one_plus_erf_half" if all(o.dtype in HALVES for o in program.outputs) else "one_plus_erf"
    code = one_plus(program.code, {"erf": name})
    for value, item in enumerate(code):
        if isinstance(item, Compute) and item.op == "exp" and _below_its_peak(code, item.args[0]):
            code[value] = replace(item, op="exp_below")
    return replace(program, code=tuple(code))


def _below_its_peak(code: Sequence[Instruction], value: int) -> bool:
    """Whether a value is x - max(x) over the columns."""
    item = code[value]
    if not isinstance(item, Compute) or item.op != "sub":
        return False
    peak = code[item.args[1]]
    return isinstance(peak, Reduce) and peak.op == "max" and peak.arg == item.args[0]


def _native(program: LoopProgram, knobs: CppKnobs) -> str:
    loops = Loops(program, KEEP_ABOVE[knobs.keep], hoist=knobs.hoist)
    body = "\n".join(_rows(program, loops))
    uses = "\n".join([body, "larger smaller"])
    return "\n".join([_HEAD, vector_math(uses), _DRIVER, body, _entry(program, knobs)])


_HEAD = """#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <limits>
"""

_DRIVER = """
#pragma omp declare reduction(larger : float, double, int64_t, int32_t, int16_t, int8_t, uint8_t : \\
    omp_out = larger(omp_out, omp_in)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(smaller : float, double, int64_t, int32_t, int16_t, int8_t, uint8_t : \\
    omp_out = smaller(omp_out, omp_in)) initializer(omp_priv = omp_orig)

static inline int64_t checked(int64_t index, int64_t bound, int& bad) {
    const bool out = (uint64_t)index >= (uint64_t)bound;
    bad |= out;
    return out ? 0 : index;
}

// One block a thread, grown when a wider row comes, given back when the thread ends.
struct Scratch {
    void* memory = nullptr;
    size_t size = 0;
    ~Scratch() { free(memory); }
    char* get(size_t wanted) {
        if (wanted > size) {
            free(memory);
            memory = aligned_alloc(64, wanted);
            size = wanted;
        }
        return (char*)memory;
    }
};
static thread_local Scratch scratch;
"""


def _rows(program: LoopProgram, loops: Loops) -> list[str]:
    """Return the function that handles tasks [begin, end): rows, or blocks of columns where nothing is reduced."""
    outer, count = len(program.axes) - 1, len(loops.walks)
    extra = outer + 2
    base = extra + len(loops.sizes) + 2 * len(loops.gathers)
    step = outer + 2
    lines = [
        f"enum {{ OUTER = {outer}, WALKS = {count}, FIRST = {base}, STEP = {step} }};",
        "// Numbers from the plan: unit stride or not, sizes, extras, then offset and strides of each walk.",
        "template <bool UNIT>",
        "static int rows(void* const* p, const int64_t* m, int64_t begin, int64_t end,",
        "                int64_t blocks, int64_t width) {",
        f"    const int64_t columns = m[{outer + 1}];",
        "    int bad = 0;",
        "    int64_t at[OUTER + 1] = {0}, o[WALKS], left = begin / blocks, block = begin % blocks;",
        "    for (int a = 0; a < WALKS; ++a) o[a] = m[FIRST + a * STEP];",
        "    for (int d = OUTER - 1; d >= 0; --d) {",
        "        at[d] = left % m[1 + d];",
        "        left /= m[1 + d];",
        "        for (int a = 0; a < WALKS; ++a) o[a] += at[d] * m[FIRST + a * STEP + 1 + d];",
        "    }",
    ]
    lines += _names(loops, outer)
    lines.append("    for (int64_t task = begin; task < end; ++task) {")
    lines.append("        const int64_t j0 = block * width, j1 = j0 + width < columns ? j0 + width : columns;")
    first = count - len(program.outputs)
    inputs = sum(i.used for i in program.inputs)
    for n, output in enumerate(program.outputs):
        kind = STORED[output.dtype]
        lines.append(f"        {kind}* __restrict const a{first + n} = ({kind}*)p[{inputs + n}] + o[{first + n}];")
    lines += [line if line.startswith("#") else f"        {line}" for line in loops.body()]
    lines += [
        "        if (++block < blocks) continue;",
        "        block = 0;",
        "        for (int d = OUTER - 1; d >= 0; --d) {",
        "            for (int a = 0; a < WALKS; ++a) o[a] += m[FIRST + a * STEP + 1 + d];",
        "            if (++at[d] < m[1 + d]) break;",
        "            for (int a = 0; a < WALKS; ++a) o[a] -= at[d] * m[FIRST + a * STEP + 1 + d];",
        "            at[d] = 0;",
        "        }",
        "    }",
        "    return bad;",
        "}",
    ]
    return lines


def _names(loops: Loops, outer: int) -> list[str]:
    """Return the statements that name the plan's numbers and the row buffers, and fill the hoisted ones."""
    extra = outer + 2
    lines = [f"    const int64_t size{n} = m[{extra + n}];" for n in range(len(loops.sizes))]
    for n in range(len(loops.gathers)):
        place = extra + len(loops.sizes) + 2 * n
        lines.append(f"    const int64_t g{n}_step = m[{place}], g{n}_bound = m[{place + 1}];")
    for n, walk in enumerate(loops.walks):
        if walk.varies:
            lines.append(f"    const int64_t c{n} = UNIT ? 1 : m[FIRST + {n} * STEP + {outer + 1}];")
    buffers = loops.buffers()
    if buffers:
        lines.append("    const size_t room = (size_t)(columns * 8 + 127) / 64 * 64;")
        lines.append(f"    char* const memory = scratch.get(room * {len(buffers)});")
        lines += [
            f"    {kind}* __restrict const {name} = ({kind}*)(memory + room * {n});"
            for n, (kind, name) in enumerate(buffers)
        ]
    if loops.hoisted:
        lines += ["    {", *(f"        {line}" for line in loops.prologue()), "    }"]
    return lines


def _entry(program: LoopProgram, knobs: CppKnobs) -> str:
    used = [i.name for i in program.inputs if i.used]
    names = [*used, *(f"y{n}" for n in range(len(program.outputs)))]
    outer = len(program.axes) - 1
    product = " * ".join(["(int64_t)1", *(f"m[{1 + d}]" for d in range(outer))])
    blocks = "1" if program.reduces else f"(columns + {knobs.block - 1}) / {knobs.block}"
    width = "columns" if program.reduces else str(knobs.block)
    return f"""
extern "C" int run({", ".join(f"void* {n}" for n in names)}, const int64_t* m) {{
    void* const p[] = {{{", ".join(names)}}};
    const int64_t columns = m[{outer + 1}], width = {width};
    const int64_t blocks = {blocks}, tasks = {product} * blocks;
    if (tasks == 0) return 0;
    int64_t threads = tasks / blocks * columns / {knobs.grain};
    const int64_t most = omp_get_max_threads();
    threads = threads > most ? most : threads;
    threads = threads > tasks ? tasks : threads;
    const auto some = m[0] ? rows<true> : rows<false>;
    if (threads <= 1) return some(p, m, 0, tasks, blocks, width);
    int bad = 0;
#pragma omp parallel num_threads((int)threads) reduction(|:bad)
    {{
        const int64_t me = omp_get_thread_num(), all = omp_get_num_threads();
        bad |= some(p, m, tasks * me / all, tasks * (me + 1) / all, blocks, width);
    }}
    return bad;
}}
"""
