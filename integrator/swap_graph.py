"""Replace the regions of a captured graph that have a winner by calls of its op; all else stays as it is."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import fx

from ..extractor.node_ops import carry_sources, example, is_call, ops_of
from ..extractor.reference import region_module
from ..extractor.regions import Region, find_regions
from ..models.errors import CandidateRejected
from ..optimizer.winner import Winner
from .kernel_site import KernelSite, Outputs
from .op_check import op_problem
from .ops import add_site, swap_op


@dataclass(frozen=True)
class Swapped:
    """A region that now is a call of a winner's op. place: path of its module, and a count within it."""

    task: str
    fingerprint: str
    place: str


@dataclass(frozen=True)
class LeftAlone:
    """A region with a winner that kept its original ops, and why."""

    task: str
    fingerprint: str
    place: str
    reason: str


@dataclass(frozen=True)
class GraphSwap:
    """What a swap did to one graph. regions: how many regions the graph has, won or not."""

    swapped: tuple[Swapped, ...]
    left: tuple[LeftAlone, ...]
    regions: int


class Sites:
    """The sites of one patched model, one for each winner; keeps them, and so their packed weights, alive."""

    def __init__(self) -> None:
        self._numbered: dict[tuple[str, str | None], tuple[int, KernelSite]] = {}

    def site(self, winner: Winner, reference: Callable[..., Outputs]) -> tuple[int, KernelSite]:
        """Return the winner's number and site, made at first use; raise CandidateRejected if it does not load."""
        key = (winner.fingerprint, winner.source)
        if key not in self._numbered:
            made = KernelSite(winner, reference)
            self._numbered[key] = (add_site(made), made)
        return self._numbered[key]

    def __iter__(self) -> Iterator[KernelSite]:
        return iter([site for _, site in self._numbered.values()])


class SwapPlan:
    """What can be swapped in one captured graph, decided once; the graph is then made with any part of it switched off.

    winners: by fingerprint. hooked: ids of modules that have hooks; a region reaching across the border of one keeps
    its ops. within: path of the module that the graph is of, "" for the whole model. traced: whether a compiler will
    trace the graph, so that the ops must stand that too.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        winners: Mapping[str, Winner],
        sites: Sites,
        hooked: Collection[int] = (),
        *,
        traced: bool = False,
        within: str = "",
    ) -> None:
        regions = find_regions(gm)
        won = [r for r in regions if r.fingerprint in winners and winners[r.fingerprint].choice != "leave"]
        self._gm = gm
        self._regions = len(regions)
        self._decisions: list[_Decision] = []
        for region, place in zip(won, _places(won, within), strict=True):
            winner = winners[region.fingerprint]
            call = _why_not(region, winner, hooked) or _call(gm, region, winner, sites, traced=traced)
            self._decisions.append(_Decision(region, place, winner, call))

    def apply(self, off: Collection[str] = ()) -> GraphSwap:
        """Swap in the graph itself, but for the fingerprints in `off`; to be called once."""
        same = {node: node for node in self._gm.graph.nodes}
        return self._swap(self._gm, same, off)

    def variant(self, off: Collection[str] = ()) -> tuple[fx.GraphModule, GraphSwap]:
        """Return a swapped copy of the graph, but for the fingerprints in `off`; the graph stays as it was captured."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        graph.output(graph.graph_copy(self._gm.graph, copies))
        carry_sources(copies)
        gm = fx.GraphModule(self._gm, graph)
        return gm, self._swap(gm, copies, off)

    def _swap(self, gm: fx.GraphModule, copies: Mapping[fx.Node, fx.Node], off: Collection[str]) -> GraphSwap:
        swapped: list[Swapped] = []
        left: list[LeftAlone] = []
        results: dict[fx.Node, fx.Node] = {}
        for decision in self._decisions:
            winner, call, place = decision.winner, decision.call, decision.place
            if isinstance(call, str):
                left.append(LeftAlone(winner.task, winner.fingerprint, place, call))
            elif winner.fingerprint not in off:
                _replace(gm.graph, _copied(decision.region, copies), call, results)
                call.site.places.add(place)
                swapped.append(Swapped(winner.task, winner.fingerprint, place))
        if swapped:
            gm.graph.lint()
            gm.recompile()
        return GraphSwap(tuple(swapped), tuple(left), self._regions)


@dataclass(frozen=True)
class _Call:
    """What a region becomes: `target(number, *inputs)`."""

    site: KernelSite
    number: int
    target: Callable[..., object]


@dataclass(frozen=True)
class _Decision:
    """A won region and the call that may stand for it, or why none may."""

    region: Region
    place: str
    winner: Winner
    call: _Call | str


def _copied(region: Region, copies: Mapping[fx.Node, fx.Node]) -> Region:
    nodes, inputs, outputs = (tuple(copies[n] for n in part) for part in (region.nodes, region.inputs, region.outputs))
    return replace(region, nodes=nodes, inputs=inputs, outputs=outputs)


def _why_not(region: Region, winner: Winner, hooked: Collection[int]) -> str | None:
    """Return why the region's ops may not be replaced, whatever the kernel."""
    if winner.choice == "inductor":
        return "Inductor's own code won this region; the inductor tail runs it"
    return _hook_between(region, hooked) or _unsafe_between(_span(region))


def _call(gm: fx.GraphModule, region: Region, winner: Winner, sites: Sites, *, traced: bool) -> _Call | str:
    """Return the call that may stand for `region`, or why none may."""
    try:
        number, site = sites.site(winner, region_module(gm, region))
    except CandidateRejected as error:
        return str(error)
    op = swap_op(site, len(region.inputs), len(region.outputs))
    reason = op_problem(site, op, [example(n) for n in region.inputs], traced=traced)
    return reason if reason is not None else _Call(site, number, op.decide)


def _span(region: Region) -> list[fx.Node]:
    """Return the nodes that stand between the region's first and last node without belonging to it."""
    members = set(region.nodes)
    span: list[fx.Node] = []
    node = region.nodes[0]
    while node is not region.nodes[-1]:
        if node not in members:
            span.append(node)
        node = node.next
    return span


def _unsafe_between(span: list[fx.Node]) -> str | None:
    """Return a reason where something between the region's ops writes, draws or switches a mode."""
    for node in span:
        if not is_call(node):
            continue
        # Impurity is asked first: running a mode switch to see its ops would switch the mode.
        if node.is_impure():
            return f"{node.name} stands between its ops"
        for one in ops_of(node) or ():
            if one.stays:
                return f"{node.name} ({one.op}) stands between its ops"
    return None


def _hook_between(region: Region, hooked: Collection[int]) -> str | None:
    if not hooked:
        return None
    stacks = [_module_ids(node) for node in region.nodes]
    across = set().union(*stacks).difference(set(stacks[0]).intersection(*stacks))
    return "a module with hooks ends inside it" if across.intersection(hooked) else None


def _module_ids(node: fx.Node) -> set[int]:
    # Dynamo names a module by its id, and by "id@n" at its n-th call.
    words = (key.split("@")[0] for key in node.meta.get("nn_module_stack", {}))
    return {int(word) for word in words if word.isdigit()}


def _replace(graph: fx.Graph, region: Region, call: _Call, results: dict[fx.Node, fx.Node]) -> None:
    """Put one call where the region's last node stands, and move behind it what uses its outputs earlier.

    results: outputs of regions already replaced, each with the node that stands for it now.
    """
    last = region.nodes[-1]
    span = _span(region)
    inputs = [results.get(n, n) for n in region.inputs]
    with graph.inserting_after(last):
        node = graph.call_function(call.target, (call.number, *inputs))
    node.meta = _meta(last, tuple(example(n) for n in region.outputs))
    made = _results(graph, region, node)
    tail = made[-1]
    late = set(region.nodes)
    for between in span:
        if late.intersection(between.all_input_nodes):
            late.add(between)
            tail.append(between)
            tail = between
    for old, new in zip(region.outputs, made, strict=True):
        old.replace_all_uses_with(new)
        results[old] = new
    for old in reversed(region.nodes):
        graph.erase_node(old)


def _results(graph: fx.Graph, region: Region, call: fx.Node) -> list[fx.Node]:
    """Return the nodes that stand for the region's outputs."""
    if len(region.outputs) == 1:
        call.meta["example_value"] = example(region.outputs[0])
        return [call]
    made: list[fx.Node] = []
    for index, output in enumerate(region.outputs):
        with graph.inserting_after(made[-1] if made else call):
            item = graph.call_function(operator.getitem, (call, index))
        item.meta = _meta(output, example(output))
        made.append(item)
    return made


def _meta(node: fx.Node, value: object) -> dict[str, object]:
    kept = ("nn_module_stack", "source_fn_stack", "stack_trace")
    return {key: node.meta[key] for key in kept if key in node.meta} | {"example_value": value}


def _places(regions: Sequence[Region], within: str) -> list[str]:
    """Return a name for where each region stands, the same in every graph of the model: module path and count."""
    seen: Counter[tuple[str, str]] = Counter()
    places: list[str] = []
    for region in regions:
        stack = list(region.nodes[-1].meta.get("nn_module_stack", {}).values())
        module = ".".join(part for part in (within, str(stack[-1][0]) if stack else "") if part)
        seen[module, region.fingerprint] += 1
        places.append(f"{module}:{seen[module, region.fingerprint]}")
    return places
