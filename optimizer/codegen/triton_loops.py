"""The Triton half of a candidate: what one program does with a tile of rows by columns, in one go or in a loop.

A value that varies along the row is a tile (ROWS, BLOCK), or (1, BLOCK) if it is the same in all rows; one that varies
over rows only is (ROWS, 1). Offsets of rows are 64-bit, those within a tile 32-bit unless WIDE.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .finish import needs
from .plan import Access, accesses, gathers, size_values, walk
from .program import FLOATS, Compute, Constant, Load, LoopProgram, Position, Reduce, SizeOf
from .triton_math import HELD, STORED, computed, identity, literal
from .triton_pieces import Strip, apart, strips, together, woven


@dataclass(frozen=True)
class Online:
    """A sum of exp(arg - shift) that is taken together with peak, the maximum of arg, in one pass over the row."""

    peak: int
    arg: int
    shift: int


@dataclass(frozen=True)
class Segment:
    """A part of a row that is handled at a time: how its lanes are named, masked and placed.

    start: the column of its first lane, "" if lanes count from the first column. aligned: columns count from where the
    row meets a 16-byte boundary.
    """

    tag: str = ""
    mask: str = "inside"
    lane: str = "lane"
    start: str = "at"
    aligned: bool = False


TILE = Segment()
BODY = Segment(aligned=True)
RIM = Segment(tag="e", mask="rim", lane="spot", start="")
REST = Segment(tag="e", mask="beyond", lane="next", start="")


@dataclass(frozen=True)
class Store:
    """What is written at a time: a value at an access, or several whose lanes alternate, at the access of the first."""

    access: int
    output: int
    values: tuple[int, ...]


@dataclass
class Pass:
    """One loop over the columns: the reductions that end in it and the stores made in it."""

    level: int
    reduces: list[int] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)


class Tiles:
    """Writes the statements of one program. evict: tell the cache which reads are the last of their data."""

    def __init__(self, program: LoopProgram, *, evict: bool) -> None:
        self.program = program
        self.code = program.code
        self.evict = evict
        self.outer = len(program.axes) - 1
        self.walks = accesses(program)
        self.strips = {m: strip for strip in strips(program) for m in strip.members if m is not None}
        self.counts = [self._count(a) for a in self.walks]
        names = [str(n) for n in range(len(program.axes))]
        steps = [walk(program, a, names) for a in self.walks]
        self.shifted = [offset != "0" for offset, _ in steps]
        alike = [(*strides, count) for (_, strides), count in zip(steps, self.counts, strict=True)]
        self.like = [alike.index(key) for key in alike]
        self.stores = self._stores()
        self.access = {a.value: n for n, a in enumerate(self.walks) if a.value is not None}
        self.gathers = gathers(program)
        self.sizes = size_values(program)
        self.live = self._live()
        self.online = self._find_online()
        self.level = self._levels()
        self.passes = self._passes()

    # --- what there is to do ------------------------------------------------------------------------------------

    def _live(self) -> set[int]:
        return self.below(v for store in self.stores for v in store.values)

    def _count(self, access: Access) -> int:
        """Return how many neighbours an access takes at a time for each column."""
        if access.value in self.strips:
            return self.strips[access.value].count
        if access.output is not None and woven(self.program, made := self.program.outputs[access.output]):
            return len(made.pieces)
        return 1

    def _stores(self) -> list[Store]:
        found = []
        for n, access in enumerate(self.walks):
            if access.output is None or (self.counts[n] > 1 and access.piece):
                continue
            made = self.program.outputs[access.output]
            values = made.pieces or (made.value,)
            values = values if self.counts[n] > 1 else (values[access.piece],)
            found.append(Store(n, access.output, values))
        return found

    def below(self, roots: Iterator[int] | Sequence[int], *, within: bool = False) -> set[int]:
        """Return the roots and all they are made of. within: only what varies along the row."""
        found: set[int] = set()
        stack = list(roots)
        while stack:
            value = stack.pop()
            if value in found or (within and not self.in_row(value)):
                continue
            found.add(value)
            stack += needs(self.code[value])
        return found

    def in_row(self, value: int) -> bool:
        return self.code[value].kind in ("full", "column")

    def _find_online(self) -> dict[int, Online]:
        """Return the sums of exp(arg - shift) whose shift is made of the maximum of arg."""
        peaks = {item.arg: v for v, item in self._reduces() if item.op == "max" and item.dtype in FLOATS}
        found: dict[int, Online] = {}
        for value, item in self._reduces():
            grown = self.code[item.arg]
            if item.op != "sum" or not isinstance(grown, Compute) or grown.op != "exp":
                continue
            shifted = self.code[grown.args[0]]
            if not isinstance(shifted, Compute) or shifted.op != "sub" or shifted.args[0] not in peaks:
                continue
            arg, shift = shifted.args
            peak = peaks[arg]
            below = self.below([shift])
            others = [v for v in below if isinstance(self.code[v], Reduce) and v != peak]
            if not self.in_row(shift) and peak in below and not set(others) - self.below([arg]):
                found[value] = Online(peak, arg, shift)
        return found

    def _reduces(self) -> Iterator[tuple[int, Reduce]]:
        for value in sorted(self.live):
            item = self.code[value]
            if isinstance(item, Reduce):
                yield value, item

    def _levels(self) -> list[int]:
        levels: list[int] = []
        for value, item in enumerate(self.code):
            used = (self.online[value].arg,) if value in self.online else needs(item)
            levels.append(max((levels[v] for v in used), default=0) + isinstance(item, Reduce))
        return levels

    def _passes(self) -> list[Pass]:
        found: dict[int, Pass] = {}
        for value, _ in self._reduces():
            level = self.level[value] - 1
            found.setdefault(level, Pass(level)).reduces.append(value)
        for store in self.stores:
            if self.walks[store.access].varies:
                level = max(self.level[v] for v in store.values)
                found.setdefault(level, Pass(level)).stores.append(store)
        return [found[level] for level in sorted(found)]

    # --- numbers from the plan ----------------------------------------------------------------------------------

    def numbers(self) -> list[str]:
        """Return the names of the integers a kernel takes, in the order the plan gives them."""
        names = ["rows", "columns", *(f"n{d}" for d in range(1, self.outer))]
        names += [f"size{n}" for n in range(len(self.sizes))]
        for n in range(len(self.gathers)):
            names += [f"g{n}_step", f"g{n}_bound"]
        for n, access in enumerate(self.walks):
            names += [f"o{n}"] if self.shifted[n] else []
            if self.like[n] != n:  # it walks as another does
                continue
            names += [f"r{n}_{d}" for d in range(self.outer)] if self.moves(access) else []
            names += [f"c{n}"] if access.varies else []
        return names

    def steps(self, number: int) -> list[str]:
        """Return the names of the numbers that say where an access meets the first column of a row."""
        access = self.walks[number]
        if not access.tensor:
            return []
        shift = [f"o{number}"] if self.shifted[number] else []
        own = self.moves(access) and self.like[number] == number
        return shift + ([f"r{number}_{d}" for d in range(self.outer)] if own else [])

    def unspecialised(self) -> list[str]:
        """Return the numbers whose divisibility is of no use: a kernel is not built again for them."""
        plain = ["rows", *(f"n{d}" for d in range(1, self.outer)), *(f"size{n}" for n in range(len(self.sizes)))]
        return plain + [f"g{n}_bound" for n in range(len(self.gathers))]

    def pointers(self) -> list[str]:
        used = [i.name for i in self.program.inputs if i.used]
        return [*used, *(f"y{n}" for n in range(len(self.program.outputs)))]

    # --- text ---------------------------------------------------------------------------------------------------

    def name(self, value: int, segment: Segment) -> str:
        return f"v{value}{segment.tag}" if self.in_row(value) else f"v{value}"

    def scalars(self) -> list[str]:
        """Return the statements for what is the same in every tile; they precede any loop."""
        lines = [
            f"v{value} = {self.expression(value, TILE)}"
            for value in sorted(self.live)
            if self.code[value].kind == "scalar"
        ]
        names = ["columns", *(name for n in range(len(self.walks)) for name in self.steps(n))]
        # The compiler asks numbers whether they are multiples of 16; of 8 it learns by what is written.
        lines += ["if EIGHT:", *(f"    {name} = {name} // 8 * 8" for name in names)]
        lines += ["lane = tl.arange(0, BLOCK)[None, :]", "if WIDE:", "    lane = lane.to(tl.int64)"]
        for count in self.wider():
            lines += [f"lane{count} = tl.arange(0, {count} * BLOCK)[None, :]"]
            lines += ["if WIDE:", f"    lane{count} = lane{count}.to(tl.int64)"]
        return lines

    def wider(self) -> list[int]:
        """Return how many neighbours accesses take at a time, where it is more than one."""
        return sorted(set(self.counts) - {1})

    def rows(self) -> list[str]:
        """Return the statements from the number of a block of rows, `group`, to the offset of each row."""
        lines = ["if WIDE:", "    group = group.to(tl.int64)"]
        lines += ["row = group * ROWS + tl.arange(0, ROWS)[:, None]", "live = row < rows"]
        # A count known to be even keeps masks whole, and accesses wide, where memory runs down the rows.
        lines += ["if EVEN:", "    live = row < rows // 16 * 16"]
        # Where no tile reaches beyond the rows or the columns there are no masks, and loads go out all at once.
        lines += ["if LIVE:", "    live = tl.full((ROWS, 1), 1, tl.int1)"]
        if self.outer == 0:
            return lines
        last = self.outer - 1
        lines += ["rest = row", f"i{last} = rest"]
        for depth, d in enumerate(range(last, 0, -1), 1):
            pad = "    " * (depth - 1)
            lines += [
                f"{pad}if AXES > {depth}:",
                f"{pad}    i{d} = rest % n{d}",
                f"{pad}    rest = rest // n{d}",
                f"{pad}    i{d - 1} = rest",
            ]
        for n, access in enumerate(self.walks):
            if not self.moves(access) or self.like[n] != n:
                continue
            lines.append(f"a{n} = i{last}.to(tl.int64) * r{n}_{last}")
            for depth, d in enumerate(range(last - 1, -1, -1), 1):
                lines += [f"if AXES > {depth}:", f"    a{n} += i{d}.to(tl.int64) * r{n}_{d}"]
        return lines

    def moves(self, access: Access) -> bool:
        """Whether an access can be elsewhere in another row."""
        if self.outer == 0:
            return False
        if access.output is not None:
            return any(a != self.program.column for d in self.program.outputs[access.output].dims for a in d)
        item = self.code[access.value or 0]
        assert isinstance(item, Load | Position)
        indexes = item.index if isinstance(item, Load) else (item.index,)
        return any(t.axis not in (None, self.program.column) for i in indexes for t in i.terms)

    def statements(self, values: Sequence[int], segment: Segment, *, last: bool = True) -> list[str]:
        """Return the statements that make values of a segment; loads that alternate along the row are one load."""
        lines: list[str] = []
        done = set[Strip]()
        for value in values:
            item, strip = self.code[value], self.strips.get(value)
            if strip is None:
                lines.append(f"{self.name(value, segment)} = {self.expression(value, segment, last=last)}")
            elif strip not in done:
                done.add(strip)
                names = [f"u{n}" if m is None else self.name(m, segment) for n, m in enumerate(strip.members)]
                rows = "ROWS" if item.kind == "full" else "1"
                lines += apart(names, self.expression(strip.first, segment, last=last), rows)
        return lines

    def columns(self, end: str) -> list[str]:
        inside = [f"inside{n} = lane{n} < ({end} - start) * {n}" for n in self.wider()]
        whole = [f"    inside{n} = tl.full((1, {n} * BLOCK), 1, tl.int1)" for n in self.wider()]
        whole = ["if FULL:", "    inside = tl.full((1, BLOCK), 1, tl.int1)", *whole]
        return [f"inside = lane < {end} - start", *inside, *whole, "at = tl.cast(start, tl.int64)"]

    def masked(self, value: int, arg: int, segment: Segment) -> str:
        """Return what a reduction takes of a tile: its argument, and nothing from lanes beyond the row."""
        item = self.code[value]
        assert isinstance(item, Reduce)
        nothing = f"tl.full((), {identity(item.op, item.dtype)}, {HELD[item.dtype]})"
        return f"tl.where({segment.mask}, {self.name(arg, segment)}, {nothing})"

    def expression(self, value: int, segment: Segment, *, last: bool = True, loaded: bool = False) -> str:
        """Return the expression of an instruction. last: nothing reads the same columns again. loaded: not widened."""
        item = self.code[value]
        if isinstance(item, Constant):
            return literal(item)
        if isinstance(item, Load):
            read = self._read(value, item, segment, last=last)
            return read if loaded else self.widened(value, read)
        if isinstance(item, Position):
            return f"({self._offset(self.access[value], segment)}).to({HELD[item.dtype]})"
        if isinstance(item, SizeOf):
            return f"tl.cast(size{self.sizes.index(value)}, {HELD[item.dtype]})"
        assert isinstance(item, Compute)
        return computed(item, [self.name(a, segment) for a in item.args], self.code[item.args[0]].dtype)

    def corner(self, number: int) -> list[str]:
        """Return the summands of where an access meets the first column."""
        shift = [f"tl.cast(o{number}, tl.int64)"] if self.shifted[number] else []
        return shift + ([f"a{self.like[number]}"] if self.moves(self.walks[number]) else [])

    def _offset(self, number: int, segment: Segment) -> str:
        """Return where an access is, in elements: 64 bits for the corner of the tile, then the lane."""
        corner, varies = self.corner(number), self.walks[number].varies
        step, count = f"c{self.like[number]}", self.counts[number]
        if varies and segment.aligned:
            corner = [f"b{number}"]
        if varies and segment.start:
            corner.append(f"{segment.start} * {step}" + (f" * {count}" if count > 1 else ""))
        text = " + ".join(corner) or "tl.zeros((1, 1), tl.int64)"
        return f"({text}) + {segment.lane}{count if count > 1 else ''} * {step}" if varies else f"({text})"

    def _read(self, value: int, item: Load, segment: Segment, *, last: bool) -> str:
        number = self.access[value]
        place = f"{self.program.inputs[item.input].name} + {self._offset(number, segment)}"
        masks = ["live"] if item.kind in ("full", "row") else []
        count = self.counts[number] if self.counts[number] > 1 else ""
        masks += [f"{segment.mask}{count}"] if self.walks[number].varies or self.in_row(value) else []
        for n, (load, _, term) in enumerate(self.gathers):
            if load == value:
                index = self.name(term.value or 0, segment)
                masks.append(f"({index} >= 0) & ({index} < g{n}_bound)")
                place += f" + {index} * g{n}_step"
        stored = self.program.inputs[item.input].dtype
        mask = f", mask={' & '.join(masks)}, other={self._poison(value, stored)}" if masks else ""
        return f"tl.load({place}{mask}{self._policy(item, last=last)})"

    def widened(self, value: int, loaded: str) -> str:
        """Return what a load gives, as the dtype its value is held in."""
        item = self.code[value]
        assert isinstance(item, Load)
        held = HELD[item.dtype]
        return f"{loaded}.to({held})" if STORED[self.program.inputs[item.input].dtype] != held else loaded

    def _poison(self, value: int, stored: str) -> str:
        """Return what a masked lane reads: NaN where an index may be out of range, so that nobody takes it for data."""
        looked_up = any(load == value for load, _, _ in self.gathers)
        return 'float("nan")' if looked_up and stored in FLOATS else "0"

    def _policy(self, item: Load, *, last: bool) -> str:
        if not self.evict:
            return ""
        if item.kind == "full":
            return f', eviction_policy="evict_{"first" if last else "last"}"'
        return ', eviction_policy="evict_last"' if item.kind == "column" else ""

    def store(self, store: Store, segment: Segment, mask: str | None = None) -> str:
        dtype = STORED[self.program.outputs[store.output].dtype]
        values = [f"{self.name(v, segment)}.to({dtype})" for v in store.values]
        value = together(values) if len(values) > 1 else values[0]
        mask = mask or f"live & {segment.mask}{len(values) if len(values) > 1 else ''}"
        return f"tl.store(y{store.output} + {self._offset(store.access, segment)}, {value}, mask={mask})"
