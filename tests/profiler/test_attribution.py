"""Rows from hand-made traces: modules, dispatched ops and what they call inside, kernels, graphs, backward."""

from __future__ import annotations

from typing import Any

from hotswap.profiler.attribution import attribute, tensor_arguments
from hotswap.profiler.chrome_trace import parse_trace
from hotswap.profiler.module_ranges import ModuleName
from hotswap.profiler.op_costs import OpCost, OpCosts
from hotswap.profiler.recording import Limits

BLOCK, NORM = ModuleName("block", "Block"), ModuleName("block.norm", "LayerNorm")
MODULES = {name.label: name for name in (BLOCK, NORM)}


def event(cat: str, name: str, ts: float, dur: float, *, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 7, "tid": tid, "args": args}


def op(name: str, ts: float, dur: float, *dims: list[int], **args: Any) -> dict[str, Any]:
    given = {
        "Input Dims": list(dims),
        "Input type": ["float"] * len(dims),
        "Input Strides": [[1] * len(d) for d in dims],
    }
    return event("cpu_op", name, ts, dur, **given, **args)


def costs(module: str, name: str, *shapes: tuple[int, ...], moved: int = 1000, flops: int = 0) -> OpCosts:
    cost = OpCost(shapes, ("float32",) * len(shapes), ((1,),) * len(shapes), moved, flops, "float32")
    return OpCosts({(module, name): [cost]})


def test_an_op_belongs_to_the_innermost_module_around_it(limits: Limits) -> None:
    trace = parse_trace(
        [
            event("user_annotation", "step", 0, 100),
            event("user_annotation", BLOCK.label, 5, 90),
            op("aten::add", 10, 10, [4]),
            event("user_annotation", NORM.label, 30, 40),
            event("user_annotation", "a range of the user's own", 31, 38),
            op("aten::mul", 35, 20, [4]),
        ]
    )
    rows = attribute(trace, "step", MODULES, OpCosts(), limits).rows
    assert [(r.op, r.module, r.module_class, r.self_us) for r in rows] == [
        ("aten::mul", "block.norm", "LayerNorm", 20),
        ("aten::add", "block", "Block", 10),
    ]


def test_what_a_dispatched_op_calls_inside_is_its_own_time(limits: Limits) -> None:
    trace = parse_trace(
        [
            event("user_annotation", "step", 0, 100),
            event("user_annotation", BLOCK.label, 5, 90),
            op("aten::contiguous", 10, 60, [4, 4]),
            op("aten::clone", 20, 45, [4, 4]),
            op("aten::empty", 22, 3),
            op("aten::copy_", 26, 30, [4, 4], [4, 4]),
        ]
    )
    found = attribute(trace, "step", MODULES, costs("block", "aten::clone", (4, 4), moved=9000), limits)
    assert [(r.op, r.self_us, r.floor_us, r.source) for r in found.rows] == [
        ("aten::clone", 45, 9.0, "memory"),
        ("aten::contiguous", 15, None, "overhead"),
    ]
    assert found.launches == 2


def test_equal_calls_are_one_row_with_a_count_and_other_shapes_or_strides_another(limits: Limits) -> None:
    transposed = op("aten::add", 40, 7, [4, 2])
    transposed["args"]["Input Strides"] = [[1, 4]]
    trace = parse_trace(
        [
            event("user_annotation", "step", 0, 100),
            op("aten::add", 10, 10, [4, 2]),
            op("aten::add", 20, 11, [4, 2]),
            op("aten::add", 32, 5, [1, 2]),
            transposed,
        ]
    )
    rows = attribute(trace, "step", MODULES, costs("", "aten::add", (4, 2)), limits).rows
    assert [(r.shapes, r.strides, r.calls, r.self_us, r.floor_us) for r in rows] == [
        (((4, 2),), ((1, 1),), 2, 21, 2.0),
        (((4, 2),), ((1, 4),), 1, 7, 1.0),
        (((1, 2),), ((1, 1),), 1, 5, None),
    ]


def test_on_a_device_the_time_is_that_of_the_kernels_each_counted_at_its_launch(limits: Limits) -> None:
    trace = parse_trace(
        [
            event("user_annotation", "step", 0, 200),
            event("user_annotation", BLOCK.label, 5, 90),
            op("aten::linear", 10, 50, [4, 4], **{"External id": 1}),
            op("aten::mm", 15, 30, [4, 4], [4, 4], **{"External id": 2}),
            op("aten::fill_", 20, 5, [4], **{"External id": 3}),
            op("aten::view", 70, 5, [4, 4], **{"External id": 4}),
            event("kernel", "splitk_zero", 60, 2, tid="s", **{"External id": 3}),
            event("kernel", "gemm", 62, 50, tid="s", **{"External id": 2}),
            event("kernel", "of_nobody", 150, 3, tid="s"),
        ]
    )
    found = attribute(trace, "step", MODULES, costs("block", "aten::mm", (4, 4), (4, 4)), limits, on_device=True)
    assert [(r.op, r.module, r.calls, r.self_us) for r in found.rows] == [
        ("aten::mm", "block", 1, 52),
        ("of_nobody", "", 1, 3),
    ]
    assert (found.launches, found.busy_us) == (3, 55)


def test_kernels_of_a_cuda_graph_are_one_row_named_after_the_replay(limits: Limits) -> None:
    trace = parse_trace(
        [
            event("user_annotation", BLOCK.label, 0, 100),
            event("cuda_runtime", "cudaGraphLaunch", 10, 5, correlation=5),
            event("kernel", "first", 30, 10, tid="s", correlation=5),
            event("kernel", "second", 40, 20, tid="s", correlation=5),
        ]
    )
    (row,) = attribute(trace, "step", MODULES, OpCosts(), limits, on_device=True).rows
    assert (row.op, row.module, row.self_us, row.calls) == ("cudaGraphLaunch", "block", 30, 1)


def test_backward_ops_belong_to_the_module_whose_forward_made_their_node(limits: Limits) -> None:
    numbered = {"Sequence number": 4, "Fwd thread id": 0}
    trace = parse_trace(
        [
            event("user_annotation", "step", 0, 200),
            event("user_annotation", BLOCK.label, 5, 50),
            op("aten::linear", 8, 40, [4, 4], **numbered),
            event("user_annotation", NORM.label, 10, 30),
            op("aten::addmm", 12, 20, [4, 4], **numbered),
            event(
                "cpu_op",
                "autograd::engine::evaluate_function: AddmmBackward0",
                100,
                40,
                **{"Sequence number": 4, "Fwd thread id": 1},
            ),
            op("aten::mm", 110, 20, [4, 4]),
            event("user_annotation", "optimizer", 150, 30),
            op("aten::_fused_adamw_", 155, 9, [4]),
        ]
    )
    rows = attribute(trace, "step", MODULES, OpCosts(), limits, optimizer="optimizer").rows
    assert {(r.op, r.module, r.phase) for r in rows} >= {
        ("aten::addmm", "block.norm", "forward"),
        ("aten::mm", "block.norm", "backward"),
        ("aten::_fused_adamw_", "", "optimizer"),
    }


def test_ops_on_other_threads_are_said_and_not_added_to_the_step(limits: Limits) -> None:
    trace = parse_trace(
        [
            event("user_annotation", "step", 0, 100),
            op("aten::add", 10, 10, [4]),
            {**op("aten::mul", 12, 80, [4]), "tid": 2},
        ]
    )
    found = attribute(trace, "step", MODULES, OpCosts(), limits)
    assert [r.op for r in found.rows] == ["aten::add"]
    assert found.elsewhere_us == 80


def test_list_arguments_are_unfolded_and_scalars_are_no_tensors() -> None:
    shapes, dtypes, strides = tensor_arguments(
        {
            "Input type": ["TensorList", "Scalar", "", "c10::BFloat16", "long int"],
            "Input Dims": [[[2, 3], [4, 3]], [], [], [5], [6]],
            "Input Strides": [[[3, 1], [1, 4]], [], [], [1], [2]],
        }
    )
    assert shapes == ((2, 3), (4, 3), (5,), (6,))
    assert strides == ((3, 1), (1, 4), (1,), (2,))
    assert dtypes == ("bfloat16", "int64")
