"""The C++ half of a candidate: the loops over one row, in as many passes as reductions depend on each other."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .finish import needs
from .plan import accesses, gathers, size_values
from .program import FLOATS, HALVES, Compute, Constant, Load, LoopProgram, Position, Reduce, SizeOf

STORED = {
    "float32": "float",
    "float64": "double",
    "bfloat16": "uint16_t",
    "float16": "_Float16",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint8": "uint8_t",
    "bool": "uint8_t",
}
HELD = STORED | {"bool": "bool", "bfloat16": "float", "float16": "float"}

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&&", "or": "||", "bitand": "&", "bitor": "|", "bitxor": "^",
}  # fmt: skip
CALLS = {
    "exp": "fast_exp", "exp_below": "exp_below", "log": "fast_log", "tanh": "fast_tanh", "erf": "fast_erf",
    "sigmoid": "fast_sigmoid", "one_plus_erf": "one_plus_erf", "one_plus_erf_half": "one_plus_erf_half",
    "maximum": "larger", "minimum": "smaller",
    "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "nearbyint", "trunc": "trunc",
    "sin": "sin", "cos": "cos", "exp2": "exp2", "expm1": "expm1", "log2": "log2", "log1p": "log1p", "pow": "pow",
}  # fmt: skip
FORMS = {
    "neg": "-{0}", "rsqrt": "1 / {t}({s}({0}))", "reciprocal": "1 / {0}", "not": "!{0}", "bitnot": "~{0}",
    "where": "{0} ? {1} : {2}", "xor": "{0} != {1}", "copy": "{0}",
}  # fmt: skip
# Rough cycles of sixteen lanes, to decide whether a value is computed again or kept; arithmetic is 1.
COST = {
    "div": 8, "reciprocal": 8, "sqrt": 8, "rsqrt": 12, "exp": 12, "exp_below": 10, "log": 16, "sigmoid": 20, "tanh": 26,
    "erf": 26, "one_plus_erf": 22, "one_plus_erf_half": 18, "sin": 80, "cos": 80, "pow": 120, "exp2": 80,
    "expm1": 80, "log2": 80, "log1p": 80, "remainder": 20,
}  # fmt: skip


@dataclass
class Pass:
    """One loop over the columns: the reductions that end in it and the outputs written in it."""

    level: int
    reduces: list[int] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)


class Loops:
    """Writes the loops of one program.

    keep_above: values dearer than this are kept in a row buffer between passes. hoist: compute what varies only along
    the row once for all rows of a thread.
    """

    def __init__(self, program: LoopProgram, keep_above: float, *, hoist: bool = False) -> None:
        self.program = program
        self.code = program.code
        self.keep_above = keep_above
        self.walks = accesses(program)
        self.access = {a.value: n for n, a in enumerate(self.walks) if a.value is not None}
        self.gathers = gathers(program)
        self.sizes = size_values(program)
        floats = {i.dtype for i in program.inputs if i.used and i.dtype in FLOATS}
        self.quiet = floats <= {"bfloat16"}
        self.level = self._levels()
        self.passes = self._passes()
        self.kept: dict[int, int] = {}
        self.hoisted: list[int] = self._hoistable() if hoist else []
        self.made: dict[int, set[int]] = {}
        self._decide()

    # --- order of the passes ------------------------------------------------------------------------------------

    def _levels(self) -> list[int]:
        levels: list[int] = []
        for item in self.code:
            own = max((levels[v] for v in needs(item)), default=0)
            levels.append(own + isinstance(item, Reduce))
        return levels

    def _passes(self) -> list[Pass]:
        found: dict[int, Pass] = {}
        for value, item in enumerate(self.code):
            if isinstance(item, Reduce):
                level = self.level[item.arg]
                found.setdefault(level, Pass(level)).reduces.append(value)
        for number, output in enumerate(self.program.outputs):
            if self.program.column in {a for d in output.dims for a in d}:
                level = self.level[output.value]
                found.setdefault(level, Pass(level)).stores.append(number)
        return [found[level] for level in sorted(found)]

    def _hoistable(self) -> list[int]:
        """Return the values along the row that others which vary over rows too are made of."""
        used = {v for item in self.code if item.kind == "full" for v in needs(item)}
        stored = {o.value for o in self.program.outputs}
        wanted = [v for v in sorted(used | stored) if self.code[v].kind == "column"]
        return [] if not self.program.reduces or any(self.level[v] for v in wanted) else wanted

    def prologue(self) -> list[str]:
        """Return the statements that fill the hoisted buffers, once before the rows."""
        if not self.hoisted:
            return []
        below: set[int] = set()
        stack = list(self.hoisted)
        while stack:
            value = stack.pop()
            if value not in below:
                below.add(value)
                stack += needs(self.code[value])
        lines: list[str] = []
        for value in sorted(below):
            item = self.code[value]
            if isinstance(item, Load):
                lines += self._base(value)
            if not self.in_loop(value) and not isinstance(item, Constant):
                lines.append(f"const {HELD[item.dtype]} v{value} = {self._expression(value)};")
        lines.append("for (int64_t j = 0; j < columns; ++j) {")
        for value in sorted(v for v in below if self.in_loop(v)):
            lines.append(f"    const {HELD[self.code[value].dtype]} v{value} = {self._expression(value)};")
        lines += [f"    h{n}[j] = v{value};" for n, value in enumerate(self.hoisted)]
        return [*lines, "}"]

    def buffers(self) -> list[tuple[str, str]]:
        """Return (type, name) of every row buffer."""
        named = [(value, f"b{n}") for value, n in self.kept.items()]
        named += [(value, f"h{n}") for n, value in enumerate(self.hoisted)]
        return [(HELD[self.code[value].dtype], name) for value, name in named]

    def in_loop(self, value: int) -> bool:
        return self.code[value].kind in ("full", "column")

    def _roots(self, turn: Pass) -> list[int]:
        reduced = [item.arg for item in (self.code[v] for v in turn.reduces) if isinstance(item, Reduce)]
        return reduced + [self.program.outputs[n].value for n in turn.stores]

    def _decide(self) -> None:
        """Choose what is kept between passes, and record what each pass computes."""
        for number, turn in enumerate(self.passes):
            now: set[int] = set()
            stack = [v for v in self._roots(turn) if self.in_loop(v)]
            while stack:
                value = stack.pop()
                if value in now:
                    continue
                now.add(value)
                if value in self.hoisted:
                    continue
                if self._made_before(value, number) and self._cost(value, number) > self.keep_above:
                    self.kept.setdefault(value, len(self.kept))
                else:
                    stack += [v for v in needs(self.code[value]) if self.in_loop(v)]
            self.made[number] = now

    def _made_before(self, value: int, turn: int) -> bool:
        return self.code[value].kind == "full" and any(value in self.made[t] for t in range(turn))

    def _cost(self, value: int, turn: int) -> float:
        """Return the price of computing a value again where dear operands can be read back."""
        item = self.code[value]
        if isinstance(item, Load):
            half = self.program.inputs[item.input].dtype in HALVES
            return (
                1.0
                + half
                + 8.0 * any(t.value is not None and self.in_loop(t.value) for i in item.index for t in i.terms)
            )
        total = float(COST.get(item.op, 1)) if isinstance(item, Compute) else 0.0
        for operand in needs(item):
            if self.in_loop(operand):
                price = self._cost(operand, turn)
                total += 1.0 if self._made_before(operand, turn) and price > self.keep_above else price
        return total

    # --- text ---------------------------------------------------------------------------------------------------

    def body(self) -> list[str]:
        """Return the statements that handle one row."""
        lines: list[str] = []
        done: set[int] = set()
        for number, turn in enumerate(self.passes):
            lines += self._row_values(turn.level, done)
            lines += self._loop(number, turn)
        lines += self._row_values(max(self.level, default=0), done)
        for number, output in enumerate(self.program.outputs):
            if self.program.column not in {a for d in output.dims for a in d}:
                place = len(self.walks) - len(self.program.outputs) + number
                lines.append(f"a{place}[0] = {self._stored(output.value, output.dtype)};")
        return lines

    def _row_values(self, level: int, done: set[int]) -> Iterator[str]:
        """Yield what does not vary along the row and is known once the passes below `level` are over."""
        for value, item in enumerate(self.code):
            if value in done or self.level[value] > level:
                continue
            done.add(value)
            if isinstance(item, Load):
                yield from self._base(value)
            if not self.in_loop(value) and not isinstance(item, Reduce | Constant):
                yield f"const {HELD[item.dtype]} v{value} = {self._expression(value)};"

    def _base(self, value: int) -> Iterator[str]:
        """Yield the pointer a load starts from in this row, rows taken through a table included."""
        number = self.access[value]
        shift = [
            self._looked_up(n)
            for n, (v, _, t) in enumerate(self.gathers)
            if v == value and not self.in_loop(t.value or 0)
        ]
        item = self.code[value]
        assert isinstance(item, Load)
        kind = STORED[self.program.inputs[item.input].dtype]
        total = " + ".join([f"o[{number}]", *shift])
        yield f"const {kind}* __restrict a{number} = (const {kind}*)p[{self.pointer(item.input)}] + {total};"

    def pointer(self, position: int) -> int:
        """Return where an input stands among the pointers: unused ones are not passed."""
        return sum(i.used for i in self.program.inputs[:position])

    def _looked_up(self, number: int) -> str:
        _, _, term = self.gathers[number]
        return f"checked(v{term.value}, g{number}_bound, bad) * g{number}_step"

    def _loop(self, number: int, turn: Pass) -> list[str]:
        lines, clauses = [], ""
        for value in turn.reduces:
            item = self.code[value]
            assert isinstance(item, Reduce)
            lines.append(f"{HELD[item.dtype]} v{value} = {_identity(item.op, item.dtype)};")
            clauses += f" reduction({_clause(item)}:v{value})"
        if any(self.in_loop(t.value or 0) for _, _, t in self.gathers):
            clauses += " reduction(|:bad)"
        lines.append(f"#pragma omp simd{clauses}")
        lines.append("for (int64_t j = j0; j < j1; ++j) {")
        lines += [f"    {line}" for line in self._statements(number, turn)]
        lines.append("}")
        return lines

    def _statements(self, number: int, turn: Pass) -> Iterator[str]:
        for value in sorted(self.made[number]):
            item = self.code[value]
            if isinstance(item, Constant):
                continue
            held = HELD[item.dtype]
            first = not self._made_before(value, number)
            text = self._expression(value) if value not in self.kept or first else f"b{self.kept[value]}[j]"
            if value in self.hoisted:
                text = f"h{self.hoisted.index(value)}[j]"
            yield f"const {held} v{value} = {text};"
            if value in self.kept and first:
                yield f"b{self.kept[value]}[j] = v{value};"
        for value in turn.reduces:
            item = self.code[value]
            assert isinstance(item, Reduce)
            yield _accumulate(item, f"v{value}", self._name(item.arg))
        for output in turn.stores:
            place = len(self.walks) - len(self.program.outputs) + output
            made = self.program.outputs[output]
            yield f"a{place}[j * c{place}] = {self._stored(made.value, made.dtype)};"

    def _stored(self, value: int, dtype: str) -> str:
        name = self._name(value)
        if dtype == "bfloat16":
            return f"{'quiet_' if self.quiet else ''}to_bf16({name})"
        return f"({STORED[dtype]}){name}"

    def _name(self, value: int) -> str:
        item = self.code[value]
        return _literal(item) if isinstance(item, Constant) else f"v{value}"

    def _expression(self, value: int) -> str:
        item = self.code[value]
        if isinstance(item, Load):
            return self._read(value, item)
        if isinstance(item, Position):
            number = self.access[value]
            return f"o[{number}] + j * c{number}" if self.walks[number].varies else f"o[{number}]"
        if isinstance(item, SizeOf):
            return f"({HELD[item.dtype]})size{self.sizes.index(value)}"
        assert isinstance(item, Compute)
        return _computed(item, [self._name(a) for a in item.args], self.code[item.args[0]].dtype)

    def _read(self, value: int, item: Load) -> str:
        number = self.access[value]
        parts = [f"j * c{number}"] if self.walks[number].varies else []
        parts += [
            self._looked_up(n) for n, (v, _, t) in enumerate(self.gathers) if v == value and self.in_loop(t.value or 0)
        ]
        text = f"a{number}[{' + '.join(parts) or '0'}]"
        stored = self.program.inputs[item.input].dtype
        if stored == "bfloat16":
            return f"from_bf16({text})"
        return f"({HELD[item.dtype]}){text}" if stored == "float16" else f"{text} != 0" if stored == "bool" else text


def _computed(item: Compute, names: list[str], within: str) -> str:
    op, held = item.op, HELD[item.dtype]
    real = item.dtype.startswith("float")
    if op == "cast":
        return f"{names[0]} != 0" if item.dtype == "bool" else f"({held}){names[0]}"
    if op in INFIX:
        text = f"{names[0]} {INFIX[op]} {names[1]}"
        # Small integers are promoted by C++; the result must wrap as torch's does.
        return text if real or item.dtype == "bool" else f"({held})({text})"
    if op == "abs":
        return (
            f"{'fabsf' if held == 'float' else 'fabs'}({names[0]})"
            if real
            else f"{names[0]} < 0 ? ({held})-{names[0]} : {names[0]}"
        )
    if op in ("floordiv", "remainder"):
        return f"{'floor_divide' if op == 'floordiv' else 'floor_remainder'}({names[0]}, {names[1]})"
    if op in CALLS:
        call = CALLS[op]
        plain = not call.startswith(("fast_", "exp_below", "one_plus_erf")) and call not in ("larger", "smaller")
        return f"{call}{'f' if plain and held == 'float' else ''}({', '.join(names)})"
    text = FORMS[op].format(*names, t=held, s="sqrtf" if held == "float" else "sqrt")
    return text if real or item.dtype == "bool" or op == "where" else f"({held})({text})"


def _literal(item: Constant) -> str:
    number = item.value
    if item.dtype == "bool":
        return "true" if number else "false"
    if not item.dtype.startswith("float"):
        return (
            "INT64_MIN"
            if number == -(2**63)
            else f"({HELD[item.dtype]}){number}{'LL' if item.dtype == 'int64' else ''}"
        )
    if math.isnan(number):
        text = "NAN"
    elif math.isinf(number) or (item.dtype == "float32" and abs(number) > 3.4028235677973366e38):
        text = "INFINITY" if number > 0 else "-INFINITY"
    else:
        text = repr(float(number)) + ("f" if item.dtype == "float32" else "")
    return f"({text})" if text.startswith("-") else text


def _identity(op: str, dtype: str) -> str:
    if op in ("max", "min") and dtype.startswith("float"):
        return "-INFINITY" if op == "max" else "INFINITY"
    if op in ("max", "min"):
        limit = "lowest" if op == "max" else "max"
        return f"std::numeric_limits<{HELD[dtype]}>::{limit}()"
    return {"sum": "0", "prod": "1", "any": "false", "all": "true"}[op]


def _clause(item: Reduce) -> str:
    return {"sum": "+", "prod": "*", "any": "||", "all": "&&", "max": "larger", "min": "smaller"}[item.op]


def _accumulate(item: Reduce, total: str, name: str) -> str:
    operator = {
        "sum": f"{total} + {name}",
        "prod": f"{total} * {name}",
        "any": f"{total} || {name}",
        "all": f"{total} && {name}",
    }
    call = {"max": f"larger({total}, {name})", "min": f"smaller({total}, {name})"}
    return f"{total} = {(operator | call)[item.op]};"


_SECTION = re.compile(r"^//: (\w+)(?: needs ([\w ]+))?$", re.MULTILINE)


def vector_math(body: str) -> str:
    """Return the sections of vector_math.h that `body` uses, each after those it needs."""
    text = (Path(__file__).parent / "vector_math.h").read_text(encoding="utf-8")
    heads = list(_SECTION.finditer(text))
    ends = [h.start() for h in heads[1:]] + [len(text)]
    sections = {h[1]: (text[h.end() : end].strip(), (h[2] or "").split()) for h, end in zip(heads, ends, strict=True)}
    wanted: dict[str, None] = {}

    def want(name: str) -> None:
        for other in sections[name][1]:
            want(other)
        wanted[name] = None

    for name, (source, _) in sections.items():
        if any(
            re.search(rf"\b{f}\b", body)
            for f in re.findall(r"^(?:template <class T> )?static inline \w+ (\w+)\(", source, re.M)
        ):
            want(name)
    return "\n".join(sections[name][0] for name in wanted)
