"""Rows held in registers, read once: as one tile or, where their width is no power of two, as two.

A tile is a power of two wide. Five thousand columns in a tile of eight thousand leave a third of the lanes idle; as one
tile of four thousand and one of a thousand they leave none.
"""

from __future__ import annotations

from .finish import needs
from .program import HALVES, Load, Reduce
from .triton_loops import REST, TILE, Segment, Store, Tiles
from .triton_math import joined, reduced


class Tile:
    """Writes the statements of a block of rows. ahead: read all there is before the first reduction waits for it.

    packed: keep across a reduction nothing but what was loaded, as it was loaded, and compute the rest of a row anew;
    what all rows share is then read where it is needed, unless it is read ahead.
    """

    def __init__(self, tiles: Tiles, *, ahead: bool, packed: bool) -> None:
        self._tiles, self._code = tiles, tiles.code
        self._ahead = ahead and tiles.program.reduces
        self._packed = packed and self.divides
        self._live = sorted(v for v in tiles.live if self._code[v].kind != "scalar")

    @property
    def divides(self) -> bool:
        """Whether there is a form in two tiles: where something is reduced and no access takes several neighbours."""
        return self._tiles.program.reduces and not self._tiles.wider()

    def common(self, *, fitted: bool = False) -> list[str]:
        """Return the statements for what is the same in every block of rows."""
        segments = self._segments(fitted=fitted)
        if self._packed:
            lines = [line for v in self._held(("column",)) for line in self._loaded(v, segments)] if self._ahead else []
        else:
            values = [v for v in self._live if self._ahead and self._code[v].kind == "column"]
            lines = self._statements(values, segments)
        return [*self._columns(fitted=fitted), *lines] if lines else []

    def block(self, *, fitted: bool = False) -> list[str]:
        """Return the statements that make and store a block of rows, or as much of it as `part` says."""
        tiles, segments = self._tiles, self._segments(fitted=fitted)
        if self._packed:
            return [*self._columns(fitted=fitted), *self._recomputed(segments)]
        values = [v for v in self._live if not (self._ahead and self._code[v].kind == "column")]
        if self._ahead:
            values.sort(key=lambda v: not (isinstance(self._code[v], Load) and not needs(self._code[v])))
        lines = [*self._columns(fitted=fitted), *self._statements(values, segments)]
        return lines + [line for store in tiles.stores for line in self._stored(store, segments)]

    def _stored(self, store: Store, segments: list[Segment]) -> list[str]:
        tiles = self._tiles
        if tiles.walks[store.access].varies:
            return [tiles.store(store, segment) for segment in segments]
        once = "live" if tiles.program.reduces else "row < tl.where(part == 0, rows, 0)"
        return [tiles.store(store, TILE, once)]

    def _segments(self, *, fitted: bool) -> list[Segment]:
        return [TILE, REST] if fitted else [TILE]

    def _columns(self, *, fitted: bool) -> list[str]:
        start = "0" if self._tiles.program.reduces else "part.to(tl.int64) * BLOCK if WIDE else part * BLOCK"
        lines = [f"start = {start}", *self._tiles.columns("columns")]
        if fitted:
            lines += ["next = BLOCK + tl.arange(0, REST)[None, :]", "if WIDE:", "    next = next.to(tl.int64)"]
            lines += ["beyond = next < columns", "if LAST:", "    beyond = tl.full((1, REST), 1, tl.int1)"]
        return lines

    def _statements(self, values: list[int], segments: list[Segment]) -> list[str]:
        lines: list[str] = []
        rows: list[int] = []  # values in a row that wait for the next reduction: what belongs together stays together
        for value in values:
            item = self._code[value]
            if self._tiles.in_row(value):
                rows.append(value)
                continue
            lines += [line for segment in segments for line in self._tiles.statements(rows, segment)]
            rows = []
            if isinstance(item, Reduce):
                lines.append(f"v{value} = {self._reduced(value, item, segments)}")
            else:
                lines += self._tiles.statements([value], TILE)
        return lines + [line for segment in segments for line in self._tiles.statements(rows, segment)]

    # --- packed -------------------------------------------------------------------------------------------------

    def _held(self, kinds: tuple[str, ...]) -> list[int]:
        """Return the loads along the row that wait for nothing."""
        loads = [v for v in self._live if self._code[v].kind in kinds and isinstance(self._code[v], Load)]
        return [v for v in loads if not needs(self._code[v])]

    def _loaded(self, value: int, segments: list[Segment]) -> list[str]:
        return [f"h{value}{s.tag} = {self._tiles.expression(value, s, loaded=True)}" for s in segments]

    def _recomputed(self, segments: list[Segment]) -> list[str]:
        """Return the statements of a block of rows: behind each reduction, all along the row from the loads again."""
        tiles = self._tiles
        held = self._held(("full", "column") if self._ahead else ("full",))
        lines = [line for v in self._held(("full",)) for line in self._loaded(v, segments)]
        fresh, phase = set[int](), 0
        for value in self._live:
            item = self._code[value]
            if tiles.in_row(value):
                continue
            if isinstance(item, Reduce):
                lines += self._along([item.arg], held, fresh, phase, segments)
                lines.append(f"v{value} = {self._reduced(value, item, segments)}")
                fresh, phase = set(), phase + 1
            else:
                lines += tiles.statements([value], TILE)
        for store in tiles.stores:
            lines += self._along([v for v in store.values if tiles.in_row(v)], held, fresh, phase, segments)
            lines += self._stored(store, segments)
        return lines

    def _along(
        self, roots: list[int], held: list[int], fresh: set[int], phase: int, segments: list[Segment]
    ) -> list[str]:
        """Return the statements for what is made along the row and not there yet in this phase."""
        tiles, lines = self._tiles, list[str]()
        for value in sorted(tiles.below(roots, within=True) - fresh):
            fresh.add(value)
            for segment in segments:
                if value in held:
                    name = f"h{value}{segment.tag}"
                    text = tiles.widened(value, f"unknown({name}, HIDE)" if phase and self._narrow(value) else name)
                else:
                    text = tiles.expression(value, segment)
                lines.append(f"{tiles.name(value, segment)} = {text}")
        return lines

    def _narrow(self, value: int) -> bool:
        item = self._code[value]
        return isinstance(item, Load) and self._tiles.program.inputs[item.input].dtype in HALVES

    def _reduced(self, value: int, item: Reduce, segments: list[Segment]) -> str:
        first, *others = (self._tiles.masked(value, item.arg, s) for s in segments)
        for other in others:  # lane by lane before the threads of a row have to wait for each other, once
            whole = f"tl.reshape(tl.broadcast_to({first}, (ROWS, BLOCK)), (ROWS, BLOCK // REST, REST))"
            first = joined(item, reduced(item, whole, keep=False), other)
        return reduced(item, first)
