"""Rows held in registers, read once: as one tile or, where their width is no power of two, as two.

A tile is a power of two wide. Five thousand columns in a tile of eight thousand leave a third of the lanes idle; as one
tile of four thousand and one of a thousand they leave none.
"""

from __future__ import annotations

from .finish import needs
from .program import Load, Reduce
from .triton_loops import REST, TILE, Segment, Tiles
from .triton_math import joined, reduced


class Tile:
    """Writes the statements of a block of rows. ahead: read all there is before the first reduction waits for it."""

    def __init__(self, tiles: Tiles, *, ahead: bool) -> None:
        self._tiles, self._code = tiles, tiles.code
        self._ahead = ahead and tiles.program.reduces
        self._live = sorted(v for v in tiles.live if self._code[v].kind != "scalar")

    @property
    def divides(self) -> bool:
        """Whether there is a form in two tiles: where something is reduced and no access takes several neighbours."""
        return self._tiles.program.reduces and not self._tiles.wider()

    def common(self, *, fitted: bool = False) -> list[str]:
        """Return the statements for what is the same in every block of rows."""
        values = [v for v in self._live if self._ahead and self._code[v].kind == "column"]
        segments = self._segments(fitted=fitted)
        return [*self._columns(fitted=fitted), *self._statements(values, segments)] if values else []

    def block(self, *, fitted: bool = False) -> list[str]:
        """Return the statements that make and store a block of rows, or as much of it as `part` says."""
        tiles, segments = self._tiles, self._segments(fitted=fitted)
        values = [v for v in self._live if not (self._ahead and self._code[v].kind == "column")]
        if self._ahead:
            values.sort(key=lambda v: not (isinstance(self._code[v], Load) and not needs(self._code[v])))
        lines = [*self._columns(fitted=fitted), *self._statements(values, segments)]
        once = "live" if tiles.program.reduces else "row < tl.where(part == 0, rows, 0)"
        for store in tiles.stores:
            if tiles.walks[store.access].varies:
                lines += [tiles.store(store, segment) for segment in segments]
            else:
                lines.append(tiles.store(store, TILE, once))
        return lines

    def _segments(self, *, fitted: bool) -> list[Segment]:
        return [TILE, REST] if fitted else [TILE]

    def _columns(self, *, fitted: bool) -> list[str]:
        start = "0" if self._tiles.program.reduces else "part.to(tl.int64) * BLOCK if WIDE else part * BLOCK"
        lines = [f"start = {start}", *self._tiles.columns("columns")]
        if fitted:
            lines += ["next = BLOCK + tl.arange(0, REST)[None, :]", "if WIDE:", "    next = next.to(tl.int64)"]
            lines.append("beyond = next < columns")
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

    def _reduced(self, value: int, item: Reduce, segments: list[Segment]) -> str:
        first, *others = (self._tiles.masked(value, item.arg, s) for s in segments)
        for other in others:  # lane by lane before the threads of a row have to wait for each other, once
            whole = f"tl.reshape(tl.broadcast_to({first}, (ROWS, BLOCK)), (ROWS, BLOCK // REST, REST))"
            first = joined(item, reduced(item, whole, keep=False), other)
        return reduced(item, first)
