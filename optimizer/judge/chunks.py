"""Evaluate a traced graph in fp64 a few rows at a time, where a tensor at full size would not fit in memory.

Rows are the places of one size symbol. A node is carried if it has the rows as a dim and each of its rows comes out the
same whatever the other rows hold, which is tried on two small graphs. Carried nodes are evaluated chunk by chunk, and
only those kept whole that an output or a node across rows (a mean over all of them) needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

logger = logging.getLogger(__name__)

Symbol = tuple[tuple[int, int], ...]
Trace = Callable[[Sequence[Tensor]], fx.GraphModule]
Change = Callable[[Tensor], Tensor]

SMALL = 1 << 22
"""Elements of all inputs up to which nothing is looked at: the whole takes no memory to speak of."""
LARGE = 1 << 24
"""Elements of the largest value from which on it is evaluated in chunks: 128 MiB in fp64."""
AT_ONCE = 1 << 22
"""Elements of the largest value of one chunk, where rows are that small."""

# Rows of the small graphs that independence is tried on: a whole and its two halves. Not 1, which broadcasts.
_HALF = 3


@dataclass(frozen=True)
class Carried:
    """Where a node of the whole graph has the rows: `dim`, with `each` places a row."""

    dim: int
    each: int


class Runner(fx.Interpreter):
    """Evaluates some nodes of a graph, and forgets each value after its last use.

    device: where what the graph makes of nothing is made, None for where the graph says.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.graph_module = gm
        self.device: torch.device | None = None

    def evaluate(self, wanted: Sequence[fx.Node], known: Mapping[fx.Node, Any]) -> list[Any]:
        """Return the values of `wanted`; nodes in `known` are not run."""
        needed = _needed(wanted, known)
        uses = {n: sum(u in needed and u not in known for u in n.users) + (n in wanted) for n in needed}
        self.env = dict(known)
        for node in self.graph_module.graph.nodes:
            if node not in needed or node in known:
                continue
            self.env[node] = self.run_node(node)
            for given in node.all_input_nodes:
                uses[given] -= 1
                if not uses[given]:
                    del self.env[given]
        return [self.env[node] for node in wanted]


@dataclass(frozen=True)
class Chunks:
    """A graph of all rows, never run as it is, and its twin of a few; `carried` nodes of the one are in both.

    count, rows: how many rows the one has and the other. symbol: where the inputs have them.
    """

    whole: fx.GraphModule
    part: fx.GraphModule
    symbol: Symbol
    count: int
    rows: int
    carried: dict[fx.Node, Carried]

    @property
    def outputs(self) -> list[fx.Node]:
        return _outputs(self.whole)

    @property
    def at_once(self) -> int:
        """The elements of the largest value that is computed in one piece."""
        stop = {*self._fixed(), *self.carried}
        left = [n for n in _needed(self.outputs, stop) if n not in stop]
        return max([*map(_elements, left), *map(_elements, self.part.graph.nodes)], default=0)

    def run(
        self, inputs: Sequence[Tensor], runner: Callable[[fx.GraphModule], Runner], change: Change
    ) -> tuple[Tensor, ...]:
        """Return the outputs for `inputs`, each made fp64 by `change`, in pieces where it has the rows."""
        fixed = {n: change(inputs[i]) for n, i in self._fixed().items()}
        frontier = [n for n in _needed(self.outputs, {*fixed, *self.carried}) if n in self.carried]
        kept = self._collect(frontier, inputs, fixed, runner(self.part), change)
        return tuple(runner(self.whole).evaluate(self.outputs, {**fixed, **kept}))

    def _fixed(self) -> dict[fx.Node, int]:
        """Return the placeholders without rows, each with its position."""
        split = dict(self.symbol)
        return {n: i for i, n in enumerate(_holders(self.whole)) if i not in split}

    def _collect(
        self,
        frontier: Sequence[fx.Node],
        inputs: Sequence[Tensor],
        fixed: Mapping[fx.Node, Tensor],
        runner: Runner,
        change: Change,
    ) -> dict[fx.Node, Tensor]:
        twin = dict(zip(self.whole.graph.nodes, self.part.graph.nodes, strict=True))
        holders = _holders(self.part)
        kept = {n: torch.empty(0) for n in frontier}
        for start in range(0, self.count, self.rows):
            # The last chunk begins early, so that one small graph serves all; what it repeats comes out the same.
            begin = min(start, self.count - self.rows)
            known = {twin[n]: t for n, t in fixed.items()}
            pieces = _narrowed(self.symbol, inputs, begin, self.rows)
            known |= {holders[position]: change(pieces[position]) for position, _ in self.symbol}
            values = runner.evaluate([twin[n] for n in frontier], known)
            for node, value in zip(frontier, values, strict=True):
                place = self.carried[node]
                if not start:
                    kept[node] = value.new_empty(tuple(node.meta["val"].shape))
                kept[node].narrow(place.dim, begin * place.each, value.shape[place.dim]).copy_(value)
        return kept


def chunked(
    trace: Trace, inputs: Sequence[Tensor], symbols: Sequence[Symbol], runner: Callable[[fx.GraphModule], Runner]
) -> Chunks | None:
    """Return the best way to evaluate the graph in chunks; None where it is small, or where no rows are independent.

    trace: makes the graph of a call, on tensors without memory.
    """
    if sum(t.numel() for t in inputs) <= SMALL:
        return None
    whole = _traced(trace, inputs)
    largest = max(map(_elements, whole.graph.nodes)) if whole else 0
    if whole is None or largest <= LARGE:
        return None
    found = [_along(symbol, whole, largest, trace, inputs, runner) for symbol in symbols]
    best = min((c for c in found if c is not None), key=lambda c: c.at_once, default=None)
    if best is None or best.at_once >= largest:
        logger.info("no rows of the reference are independent: its oracle is evaluated whole, %d values", largest)
        return None
    return best


def _traced(trace: Trace, inputs: Sequence[Tensor]) -> fx.GraphModule | None:
    """Return the graph of a call on tensors without memory, None where values decide what is computed."""
    try:
        gm = trace(inputs)
    except (RuntimeError, ValueError) as error:  # what torch raises where values are needed or sizes do not fit
        logger.info("the reference cannot be traced without memory: %s", error)
        return None
    constants = [getattr(gm, str(n.target)) for n in gm.graph.nodes if n.op == "get_attr"]
    shapes = [n.meta["val"].shape for n in gm.graph.nodes if isinstance(n.meta.get("val"), Tensor)]
    known = all(isinstance(size, int) for shape in shapes for size in shape)
    return gm if known and not any(isinstance(c, FakeTensor) for c in constants) else None


def _along(
    symbol: Symbol,
    whole: fx.GraphModule,
    largest: int,
    trace: Trace,
    inputs: Sequence[Tensor],
    runner: Callable[[fx.GraphModule], Runner],
) -> Chunks | None:
    """Return the chunks along one symbol's places, None where the graph is another at other sizes."""
    count = inputs[symbol[0][0]].shape[symbol[0][1]]
    if count < 2 * _HALF or len(dict(symbol)) < len(symbol):  # twice in one input: a square has no rows of its own
        return None
    rows = max(1, min(count, count * AT_ONCE // largest))
    trial = _trial(symbol, inputs)
    halves = [_narrowed(symbol, trial, begin, _HALF) for begin in (0, _HALF)]
    part, both, half = (_traced(trace, _narrowed(symbol, inputs, 0, n)) for n in (rows, 2 * _HALF, _HALF))
    if part is None or both is None or half is None or any(_spelled(g) != _spelled(whole) for g in (part, both, half)):
        return None
    try:
        values = [_every(runner(g), given) for g, given in ((both, trial), (half, halves[0]), (half, halves[1]))]
    except (RuntimeError, IndexError) as error:  # an index of the rows that are left out
        logger.info("rows %s cannot be taken alone: %s", symbol, error)
        return None
    carried = {}
    for node, twin, *tried in zip(_body(whole), _body(part), *values, strict=True):
        place = _carried(*tried) if all(isinstance(v, Tensor) for v in tried) else None
        if place is not None and _has(node, place, count) and _has(twin, place, rows):
            carried[node] = place
    return Chunks(whole, part, symbol, count, rows, carried)


def _every(runner: Runner, inputs: Sequence[Tensor]) -> list[Any]:
    """Return the value of every node, evaluated on the CPU: there a wrong index is an error and no more."""
    runner.device = torch.device("cpu")
    return runner.evaluate(_body(runner.graph_module), dict(zip(_holders(runner.graph_module), inputs, strict=True)))


def _trial(symbol: Symbol, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return six rows of the inputs on the CPU, in fp64, with floats drawn anew: equal rows would look independent."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for position, given in enumerate(t.cpu() for t in _narrowed(symbol, inputs, 0, 2 * _HALF)):
        if position in dict(symbol) and given.is_floating_point():
            drawn = torch.randn(given.shape, generator=generator, dtype=torch.float64)
            # Where nothing was negative a root or a logarithm may follow.
            made.append(drawn.abs() + 0.5 if bool((given >= 0).all()) else drawn)
        else:
            made.append(given.to(torch.float64) if given.is_floating_point() else given)
    return made


def _narrowed(symbol: Symbol, inputs: Sequence[Tensor], begin: int, rows: int) -> list[Tensor]:
    """Return the inputs with some of their rows; what was dense still is, for the reference may need it."""
    made = list(inputs)
    for position, dim in symbol:
        piece = made[position].narrow(dim, begin, rows)
        made[position] = piece.contiguous() if made[position].is_contiguous() else piece
    return made


def _spelled(gm: fx.GraphModule) -> list[tuple[str, str]]:
    return [(n.op, str(n.target)) for n in gm.graph.nodes]


def _holders(gm: fx.GraphModule) -> list[fx.Node]:
    return [n for n in gm.graph.nodes if n.op == "placeholder"]


def _body(gm: fx.GraphModule) -> list[fx.Node]:
    return list(gm.graph.nodes)[:-1]


def _outputs(gm: fx.GraphModule) -> list[fx.Node]:
    returned: Any = gm.graph.output_node().args[0]
    return list(returned) if isinstance(returned, tuple | list) else [returned]


def _elements(node: fx.Node) -> int:
    value = node.meta.get("val")
    return int(value.numel()) if isinstance(value, Tensor) else 0


def _has(node: fx.Node, place: Carried, rows: int) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.shape[place.dim] == rows * place.each


def _needed(wanted: Iterable[fx.Node], known: Iterable[fx.Node]) -> dict[fx.Node, None]:
    """Return the nodes from which `wanted` are made, themselves included; what is known is made of nothing."""
    found: dict[fx.Node, None] = {}
    waiting, stop = list(wanted), set(known)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = None
            waiting += [] if node in stop else node.all_input_nodes
    return found


def _carried(both: Tensor, one: Tensor, other: Tensor) -> Carried | None:
    """Return where a node has the rows, given its values for six rows and for each three; None if rows mix."""
    if both.dim() != one.dim() or one.shape != other.shape:
        return None
    dims = [d for d in range(both.dim()) if both.shape[d] != one.shape[d]]
    if len(dims) != 1 or both.shape[dims[0]] != 2 * one.shape[dims[0]] or one.shape[dims[0]] % _HALF:
        return None
    again = torch.cat([one, other], dims[0])
    if both.is_floating_point():
        # The same arithmetic, but for the order in which a library adds.
        same = torch.allclose(both, again, rtol=1e-9, atol=1e-12, equal_nan=True)
    else:
        same = torch.equal(both, again)
    return Carried(dims[0], one.shape[dims[0]] // _HALF) if same else None
