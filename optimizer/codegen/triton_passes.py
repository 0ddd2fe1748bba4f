"""Rows in a loop: in as few passes as reductions depend on each other, by one program or by several that share a row.

Three forms of the same passes. Plain: a program walks over its rows from end to end. Peeled: the body of the row starts
at a 16-byte boundary, and what is left at both ends, the rim, is one short tile more. Split: each pass is a kernel of
its own, in which several programs share a row and leave partial results that the next pass combines in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator

from .finish import needs
from .program import Load, Reduce
from .triton_loops import BODY, RIM, TILE, Pass, Segment, Tiles
from .triton_math import HELD, identity, joined, reduced

BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2}


class Passes:
    """Writes the loops of a program that reduces."""

    def __init__(self, tiles: Tiles) -> None:
        self.tiles = tiles
        self.code = tiles.code
        self.online = tiles.online

    # --- the three forms ----------------------------------------------------------------------------------------

    def plain(self) -> list[str]:
        """Return the statements that handle a block of rows in steps of BLOCK columns."""
        return self._all([TILE], "0", "columns")

    def peeled(self) -> list[str]:
        """Return the same for one row, whose `body` starts `head` columns in, where memory is aligned."""
        lead, tiles = self.lead(), self.tiles
        lines = [f"lead = tl.max(tl.max({' + '.join(tiles.corner(lead)) or 'tl.zeros((1, 1), tl.int64)'}, 1), 0)"]
        lines += [
            "head = tl.minimum((PEEL - lead % PEEL) % PEEL, columns).to(tl.int32)",
            "body = (columns - head) // PEEL * PEEL",
            "spot = tl.arange(0, 2 * PEEL)[None, :]",
            "spot = tl.where(spot < PEEL, spot, spot - PEEL + head + body)",
            "rim = (spot < head) | ((spot >= head + body) & (spot < columns))",
        ]
        for n, access in enumerate(tiles.walks):
            if access.varies:
                corner = " + ".join(tiles.corner(n)) or "tl.zeros((1, 1), tl.int64)"
                lines += [f"if L{n}:", f"    b{n} = ({corner} + PEEL - 1) // PEEL * PEEL"]
                lines += ["else:", f"    b{n} = {corner} + head * c{tiles.like[n]}"]
        return lines + self._all([BODY, RIM], "0", "body")

    def split(self, number: int) -> list[str]:
        """Return the statements of pass `number` for the columns of `share`; of the rest once all passes are over."""
        tiles, done = self.tiles, set[int]()
        lines = [line for turn in tiles.passes[:number] for line in self._recalled(turn)]
        if number < len(tiles.passes):
            turn = tiles.passes[number]
            lines += self._row_values(turn.level, done)
            lines += ["end = tl.minimum(columns, (share + 1) * chunk)"]
            lines += self._pass(turn, [TILE], "share * chunk", "end", last=number == len(tiles.passes) - 1)
            lines += [line for value in turn.reduces for line in self._left(value)]
        if number == self.stages - 1:
            lines += self._row_values(max(tiles.level, default=0), done)
            lines += self._row_stores("row < tl.where(share == 0, rows, 0)")
        return lines

    @property
    def stages(self) -> int:
        """How many kernels the split form has: one a pass, and one more if the last pass ends in a reduction."""
        return len(self.tiles.passes) + bool(self.tiles.passes[-1].reduces)

    def lead(self) -> int:
        """Return the access whose alignment counts: the first that reads whole rows, else that writes them."""
        tiles = self.tiles
        full = [n for n, a in enumerate(tiles.walks) if a.varies and tiles.moves(a)]
        real = [n for n in full if tiles.walks[n].tensor]
        return (real or full or [0])[0]

    def peel(self) -> int:
        """Return the elements that make 16 bytes of the narrowest tensor that varies over rows and columns."""
        program = self.tiles.program
        sizes = [16]
        for access in self.tiles.walks:
            if not access.varies or not self.tiles.moves(access):
                continue
            if access.output is not None:
                sizes.append(BYTES.get(program.outputs[access.output].dtype, 1))
            elif isinstance(item := self.code[access.value or 0], Load):
                sizes.append(BYTES.get(program.inputs[item.input].dtype, 1))
        return 16 // min(sizes)

    def partials(self) -> list[tuple[str, str]]:
        """Return (name, dtype) of the arrays through which programs that share a row hand on what they found."""
        found = []
        for turn in self.tiles.passes:
            for value in turn.reduces:
                item = self.code[value]
                if self._led_by(value) is None:
                    found.append((f"ws{value}", item.dtype))
                if value in self.online and self._leads(value):
                    found.append((f"wp{value}", item.dtype))
        return found

    # --- statements ---------------------------------------------------------------------------------------------

    def _all(self, segments: list[Segment], begin: str, end: str) -> list[str]:
        tiles, done = self.tiles, set[int]()
        lines: list[str] = []
        for number, turn in enumerate(tiles.passes):
            lines += self._row_values(turn.level, done, peeled=len(segments) > 1)
            lines += self._pass(turn, segments, begin, end, last=number == len(tiles.passes) - 1)
        lines += self._row_values(max(tiles.level, default=0), done, peeled=len(segments) > 1)
        return lines + self._row_stores("live")

    def _row_stores(self, mask: str) -> list[str]:
        tiles = self.tiles
        return [tiles.store(s, TILE, mask) for s in tiles.stores if not tiles.walks[s.access].varies]

    def _row_values(self, level: int, done: set[int], *, peeled: bool = False) -> Iterator[str]:
        """Yield what does not vary along the row and is known once the passes below `level` are over."""
        for value in sorted(self.tiles.live - done):
            item = self.code[value]
            if self.tiles.level[value] > level or self.tiles.in_row(value):
                continue
            done.add(value)
            if isinstance(item, Reduce):
                yield from self._finished(value, item, peeled=peeled)
            elif item.kind != "scalar":
                yield f"v{value} = {self.tiles.expression(value, TILE)}"

    def _pass(self, turn: Pass, segments: list[Segment], begin: str, end: str, *, last: bool) -> list[str]:
        lines = [line for value in turn.reduces for line in self._started(value)]
        main, *rims = segments
        for rim in rims:
            lines += self._values(turn, rim, last=last)
            lines += [f"e{v} = {self.tiles.masked(v, self._taken(v), rim)}" for v in turn.reduces]
            lines += [self.tiles.store(store, rim) for store in turn.stores]
        lines.append(f"for start in tl.range({begin}, {end}, BLOCK, num_stages=STAGES):")
        inner = [*self.tiles.columns(end), *self._values(turn, main, last=last)]
        inner += [line for value in turn.reduces for line in self._accumulated(value, main)]
        inner += [self.tiles.store(store, main) for store in turn.stores]
        return lines + [f"    {line}" for line in inner]

    def _values(self, turn: Pass, segment: Segment, *, last: bool) -> list[str]:
        tiles = self.tiles
        roots = [self._taken(v) for v in turn.reduces] + [v for store in turn.stores for v in store.values]
        return tiles.statements(sorted(tiles.below(roots, within=True)), segment, last=last)

    def _taken(self, value: int) -> int:
        """Return what a reduction takes in: for a sum of exponentials, their argument."""
        return self.online[value].arg if value in self.online else needs(self.code[value])[0]

    def _leads(self, value: int) -> bool:
        """Whether a sum is the first of those that share its maximum: it keeps the running maximum for all."""
        return value == self._led_by(self.online[value].peak)

    def _led_by(self, peak: int) -> int | None:
        """Return the sum that keeps the running maximum `peak`, if one does."""
        return min((v for v, o in self.online.items() if o.peak == peak), default=None)

    def _started(self, value: int) -> list[str]:
        item = self.code[value]
        held = HELD[item.dtype]
        if value in self.online:
            shape = "(ROWS, BLOCK // GROUP)"
            peak = [f'p{value} = tl.full({shape}, float("-inf"), {held})'] if self._leads(value) else []
            return [*peak, f"s{value} = tl.full({shape}, 0.0, {held})"]
        if self._led_by(value) is not None:
            return []
        assert isinstance(item, Reduce)
        return [f"s{value} = tl.full((ROWS, BLOCK // FOLD), {identity(item.op, item.dtype)}, {held})"]

    def _accumulated(self, value: int, segment: Segment) -> list[str]:
        item = self.code[value]
        assert isinstance(item, Reduce)
        if value in self.online:
            return self._accumulated_online(value, segment) if self._leads(value) else []
        if self._led_by(value) is not None:
            return []
        # What one thread has of a tile becomes one value first: its registers are then free for loads.
        whole = f"tl.broadcast_to({self.tiles.masked(value, item.arg, segment)}, (ROWS, BLOCK))"
        folded = reduced(item, f"tl.reshape({whole}, (ROWS, FOLD, BLOCK // FOLD))", keep=False)
        return [f"s{value} = {joined(item, f's{value}', folded)}"]

    def _accumulated_online(self, value: int, segment: Segment) -> list[str]:
        """Return the update of sums over groups of neighbouring lanes: one rescaling a group, in one thread."""
        peak, arg = self.online[value].peak, self.online[value].arg
        t, p, q, b = (f"{name}{value}" for name in "tpqb")
        whole = f"tl.broadcast_to({self.tiles.masked(peak, arg, segment)}, (ROWS, BLOCK))"
        lines = [
            f"{t} = tl.reshape({whole}, (ROWS, BLOCK // GROUP, GROUP))",
            f"{q} = larger({p}, tl.reduce({t}, 2, larger))",
            f"{b} = finite({q})",
        ]
        grown = f"tl.sum(tl.exp({t} - {b}[:, :, None]), axis=2)"
        sharing = [v for v, o in self.online.items() if o.peak == peak]
        lines += [f"s{v} = s{v} * tl.exp({p} - {b}) + {grown}" for v in sharing]
        return [*lines, f"{p} = {q}"]

    def _finished(self, value: int, item: Reduce, *, peeled: bool) -> Iterator[str]:
        """Yield the statements from lanes to the result of a row."""
        if value in self.online:
            peak = self.online[value].peak
            leader = self._led_by(peak)
            total = _grown(f"s{value}", f"p{leader}", f"f{leader}")
            if peeled:
                total = f"({total} + tl.sum(tl.exp(e{peak} - f{leader}), axis=1, keep_dims=True))"
            yield f"v{value} = {total} * tl.exp(f{leader} - v{self.online[value].shift})"
            return
        leader = self._led_by(value)
        result = reduced(item, f"s{value}" if leader is None else f"p{leader}")
        yield f"v{value} = {joined(item, result, reduced(item, f'e{value}')) if peeled else result}"
        if leader is not None:
            yield f"f{leader} = finite(v{value})"

    def _left(self, value: int) -> Iterator[str]:
        """Yield the statements that leave a program's part of a reduction for the next pass."""
        item = self.code[value]
        assert isinstance(item, Reduce)
        there = "tl.cast(share, tl.int64) * rows + row"
        if value in self.online:
            leader = self._led_by(self.online[value].peak)
            if value == leader:
                yield f"w{value} = tl.reduce(p{value}, 1, larger, keep_dims=True)"
                yield f"tl.store(wp{value} + {there}, w{value}, mask=live)"
            total = _grown(f"s{value}", f"p{leader}", f"finite(w{leader})")
            yield f"tl.store(ws{value} + {there}, {total}, mask=live)"
        elif self._led_by(value) is None:
            yield f"tl.store(ws{value} + {there}, {reduced(item, f's{value}')}, mask=live)"

    def _recalled(self, turn: Pass) -> Iterator[str]:
        """Yield the statements that read what the programs of an earlier pass left, as lanes of a tile."""
        if turn.reduces:
            yield "part = tl.arange(0, MOST)[None, :]"
            yield "whole = live & (part < shares)"
            yield "there = part.to(tl.int64) * rows + row"
        for value in turn.reduces:
            item = self.code[value]
            assert isinstance(item, Reduce)
            if value in self.online:
                if self._leads(value):
                    yield f'p{value} = tl.load(wp{value} + there, mask=whole, other=float("-inf"))'
                yield f"s{value} = tl.load(ws{value} + there, mask=whole, other=0)"
            elif self._led_by(value) is None:
                nothing = identity(item.op, item.dtype)
                yield f"s{value} = tl.load(ws{value} + there, mask=whole, other={nothing})"


def _grown(total: str, peak: str, base: str) -> str:
    """Return the sum over lanes of exponentials that each lane counted from its own peak, counted from `base`."""
    return f"tl.sum({total} * tl.exp({peak} - {base}), axis=1, keep_dims=True)"
