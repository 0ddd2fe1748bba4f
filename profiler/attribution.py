"""Turn a recorded step into rows: each op's own time, once, under the innermost module that ran it.

The rows' ops are those the dispatcher executed. What such an op calls inside itself (the `copy_` of a `clone`, the
`empty` of a softmax) is how it works and counts as its time; a composite above it (`linear`, `to`) has a row of its own
with what it spends besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .chrome_trace import DeviceEvent, HostEvent, Trace
from .module_ranges import ModuleName
from .op_costs import OpCost, OpCosts, Shapes
from .recording import Limits, Row

_DTYPES: Mapping[str, str] = {
    "float": "float32",
    "double": "float64",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}
_NO_MODULE = ModuleName("", "")
_BACKWARD = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class Attribution:
    """The rows of one step, dearest first, and what they were counted from.

    launches: device events, or the ops themselves on a CPU. elsewhere_us: op time of other threads, which runs beside
    the step's own and is not in the rows (on a CPU; a device's work counts whoever launched it).
    """

    rows: tuple[Row, ...]
    launches: int
    busy_us: float
    elsewhere_us: float


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an event stands: its module, its phase, and the op whose time it is."""

    module: ModuleName
    phase: str
    owner: int | None
    dispatched: OpCost | None


@dataclass(slots=True)
class _Sum:
    """What one row collects while the events pass by."""

    cost: OpCost | None
    self_us: float = 0.0
    owners: set[Any] = field(default_factory=set)


def attribute(
    trace: Trace,
    step: str,
    modules: Mapping[str, ModuleName],
    costs: OpCosts,
    limits: Limits,
    *,
    on_device: bool = False,
    optimizer: str | None = None,
) -> Attribution:
    """Return the rows of the range called `step`.

    modules: range name to module. on_device: time is that of the device events; else that of the host ops.
    optimizer: name of the range whose ops are the optimiser's.
    """
    root = trace.find_range(step)
    places = _places(trace, modules, costs, optimizer)
    sums: dict[tuple[Any, ...], _Sum] = {}
    if on_device:
        for launched in trace.device:
            _add_device(sums, trace, places, launched)
        return Attribution(_rows(sums, limits), len(trace.device), trace.busy_us(), 0.0)
    elsewhere_us, count = 0.0, 0
    thread = trace.host[root].thread if root is not None else None
    for index, event in enumerate(trace.host):
        owner = places[index].owner
        if event.kind != "op" or owner is None or not _within(event, trace, root):
            continue
        if event.thread != thread:
            elsewhere_us += event.self_us
            continue
        _add(sums, trace.host[owner], places[owner], event.self_us, owner)
        count += owner == index
    return Attribution(_rows(sums, limits), count, 0.0, elsewhere_us)


def tensor_arguments(args: Mapping[str, Any]) -> tuple[Shapes, tuple[str, ...], Shapes]:
    """Return shapes, dtypes and strides of an op event's tensors, lists unfolded; a trace has no dtypes of a list."""
    shapes: list[tuple[int, ...]] = []
    dtypes: list[str] = []
    strides: list[tuple[int, ...]] = []
    kinds: Sequence[str] = args.get("Input type", ())
    all_dims, all_strides = args.get("Input Dims", ()), args.get("Input Strides", ())
    for position, kind in enumerate(kinds):
        dims = all_dims[position] if position < len(all_dims) else []
        step = all_strides[position] if position < len(all_strides) else []
        if kind == "TensorList":
            shapes += [tuple(d) for d in dims if isinstance(d, list)]
            strides += [tuple(s) for s in step if isinstance(s, list)]
        elif kind in _DTYPES or kind.startswith("c10::"):
            shapes.append(tuple(dims))
            strides.append(tuple(step))
            dtypes.append(_DTYPES.get(kind, kind.removeprefix("c10::").lower()))
    return tuple(shapes), tuple(dtypes), tuple(strides)


def _within(event: HostEvent, trace: Trace, root: int | None) -> bool:
    if root is None:
        return True
    step = trace.host[root]
    return step.start_us <= event.start_us < step.end_us


def _places(trace: Trace, modules: Mapping[str, ModuleName], costs: OpCosts, optimizer: str | None) -> list[_Place]:
    """Find every event's place; parents come before children, so one pass sees each parent's place first."""
    inside = _enclosing_modules(trace, modules)
    differentiated = _differentiated(trace, inside)
    top = _Place(_NO_MODULE, "forward", None, None)
    places: list[_Place] = []
    for index, event in enumerate(trace.host):
        around = places[event.parent] if event.parent is not None else top
        phase, module = around.phase, inside[index]
        if phase == "backward":
            module = around.module
        if event.name.startswith(_BACKWARD):
            phase, module = "backward", differentiated.get(event.args.get("Sequence number"), _NO_MODULE)
        if event.kind == "range":
            phase = "optimizer" if event.name == optimizer else phase
            places.append(_Place(module, phase, around.owner, around.dispatched))
        elif event.kind == "launch" or around.dispatched is not None:
            places.append(around)
        else:
            cost = costs.find(module.path if phase == "forward" else "", event.name, tensor_arguments(event.args)[0])
            places.append(_Place(module, phase, index, cost))
    return places


def _enclosing_modules(trace: Trace, modules: Mapping[str, ModuleName]) -> list[ModuleName]:
    found: list[ModuleName] = []
    for event in trace.host:
        around = found[event.parent] if event.parent is not None else _NO_MODULE
        found.append(modules.get(event.name, around) if event.kind == "range" else around)
    return found


def _differentiated(trace: Trace, inside: Sequence[ModuleName]) -> dict[Any, ModuleName]:
    """Map autograd's sequence numbers to the module of the op whose backward carries that number.

    Ops carry the number the next node will get, so the last op to start with a number is the one that made the node.
    """
    latest: dict[Any, tuple[float, ModuleName]] = {}
    for index, event in enumerate(trace.host):
        number = event.args.get("Sequence number")
        if event.kind != "op" or number is None or event.args.get("Fwd thread id"):
            continue
        if number not in latest or latest[number][0] <= event.start_us:
            latest[number] = (event.start_us, inside[index])
    return {number: module for number, (_, module) in latest.items()}


def _add_device(sums: dict[tuple[Any, ...], _Sum], trace: Trace, places: Sequence[_Place], event: DeviceEvent) -> None:
    place = places[event.launcher] if event.launcher is not None else _Place(_NO_MODULE, "forward", None, None)
    if place.owner is not None:
        _add(sums, trace.host[place.owner], places[place.owner], event.dur_us, place.owner)
        return
    # No op launched it: a kernel called from Python, or a whole CUDA graph, whose kernels share one launch.
    graph = event.launch_name if event.launch_name and "Graph" in event.launch_name else None
    key = (place.phase, graph or event.name, place.module, (), (), ())
    row = sums.setdefault(key, _Sum(None))
    row.self_us += event.dur_us
    row.owners.add(("launch", event.correlation) if graph else ("kernel", event.start_us))


def _add(sums: dict[tuple[Any, ...], _Sum], op: HostEvent, place: _Place, self_us: float, owner: int) -> None:
    shapes, dtypes, strides = tensor_arguments(op.args)
    if place.dispatched is not None and len(place.dispatched.shapes) > len(shapes):
        shapes, strides = place.dispatched.shapes, place.dispatched.strides  # list arguments that the trace omits
    if place.dispatched is not None and len(dtypes) < len(shapes):
        dtypes = place.dispatched.dtypes
    row = sums.setdefault((place.phase, op.name, place.module, shapes, dtypes, strides), _Sum(place.dispatched))
    row.self_us += self_us
    row.owners.add(owner)


def _rows(sums: Mapping[tuple[Any, ...], _Sum], limits: Limits) -> tuple[Row, ...]:
    rows = []
    for (phase, op, module, shapes, dtypes, strides), row in sums.items():
        calls, cost = len(row.owners), row.cost
        rows.append(
            Row(
                op=op,
                module=module.path,
                module_class=module.class_name,
                shapes=shapes,
                dtypes=dtypes,
                strides=strides,
                calls=calls,
                self_us=row.self_us,
                floor_us=cost.floor_us(limits) * calls if cost else None,
                bytes=cost.bytes * calls if cost else None,
                flops=cost.flops * calls if cost else None,
                source=cost.source(limits) if cost else "overhead",
                phase=phase,
            )
        )
    return tuple(sorted(rows, key=lambda r: -r.self_us))
