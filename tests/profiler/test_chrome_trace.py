"""The parser on hand-made traces: nesting, self times, launches joined to ops, and broken files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hotswap.models.errors import RecordError
from hotswap.profiler.chrome_trace import parse_trace, read_trace


def event(cat: str, name: str, ts: float, dur: float, *, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 7, "tid": tid, "args": args}


def cuda_trace() -> dict[str, Any]:
    """A linear whose matmul and bias kernels run later, on the device, while the host has moved on.

    host:   [ step  [ linear [ mm ..launch ] ..launch ] ]
    device:            .            [ gemm 50 ][ bias 10 ]      [ memset 5 ]
    """
    return {
        "traceEvents": [
            event("user_annotation", "step", 0, 100),
            event("cpu_op", "aten::linear", 10, 40, **{"External id": 11}),
            event("cpu_op", "aten::mm", 15, 20, **{"External id": 12}),
            event("cuda_runtime", "cudaLaunchKernel", 20, 5, correlation=901),
            event("cuda_runtime", "cudaLaunchKernel", 40, 5, correlation=902),
            event("cuda_runtime", "cudaMemsetAsync", 60, 5, correlation=903),
            event("kernel", "gemm", 70, 50, tid="stream 7", **{"External id": 12, "correlation": 901}),
            event("kernel", "bias", 120, 10, tid="stream 7", correlation=902),
            event("gpu_memset", "Memset (Device)", 140, 5, tid="stream 7", correlation=903),
            event("gpu_user_annotation", "step", 70, 75, tid="stream 7"),
        ]
    }


def test_self_time_is_duration_minus_what_is_directly_inside() -> None:
    trace = parse_trace(
        [
            event("user_annotation", "step", 0, 100),
            event("cpu_op", "aten::softmax", 10, 60),
            event("cpu_op", "aten::_softmax", 20, 40),
            event("cpu_op", "aten::empty", 25, 5),
        ]
    )
    assert {e.name: e.self_us for e in trace.host} == {
        "step": 40,
        "aten::softmax": 20,
        "aten::_softmax": 35,
        "aten::empty": 5,
    }


def test_threads_do_not_nest_in_each_other() -> None:
    trace = parse_trace([event("cpu_op", "a", 0, 100, tid=1), event("cpu_op", "b", 10, 20, tid=2)])
    assert [(e.name, e.self_us, e.parent) for e in trace.host] == [("a", 100, None), ("b", 20, None)]


def test_a_child_that_ends_after_its_parent_takes_only_the_overlap() -> None:
    trace = parse_trace([event("cpu_op", "parent", 0, 10), event("cpu_op", "child", 8, 4)])
    assert trace.host[0].self_us == 8


def test_kernels_join_the_op_that_launched_them_by_external_id_or_correlation() -> None:
    trace = parse_trace(cuda_trace())
    launchers = {d.name: trace.host[d.launcher].name for d in trace.device if d.launcher is not None}
    assert launchers == {"gemm": "aten::mm", "bias": "aten::linear", "Memset (Device)": "step"}


def test_a_launch_takes_no_time_off_its_op_and_device_ranges_are_no_device_work() -> None:
    trace = parse_trace(cuda_trace())
    assert next(e for e in trace.host if e.name == "aten::mm").self_us == 20
    assert sum(d.dur_us for d in trace.device) == 65


def test_busy_time_counts_overlapping_streams_once() -> None:
    trace = parse_trace(
        [
            event("kernel", "a", 0, 10, tid="stream 1"),
            event("kernel", "b", 5, 10, tid="stream 2"),
            event("kernel", "inside", 6, 1, tid="stream 3"),
            event("kernel", "c", 30, 5, tid="stream 1"),
        ]
    )
    assert trace.busy_us() == 20


def test_a_trace_without_rank_or_memsets_is_read_from_json_and_gzip(tmp_path: Path) -> None:
    plain = cuda_trace()
    plain["traceEvents"] = [e for e in plain["traceEvents"] if e["cat"] != "gpu_memset"]
    (tmp_path / "t.json").write_text(json.dumps(plain))
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(json.dumps(plain).encode()))
    assert read_trace(tmp_path / "t.json") == read_trace(tmp_path / "t.json.gz")
    assert len(read_trace(tmp_path / "t.json").device) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(json.dumps(cuda_trace()).encode())[:-40], "cut short"),
        (gzip.compress(json.dumps(cuda_trace()).encode())[:15], "cut short"),
        (b'{"traceEvents": []}', "empty"),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}', "empty"),
        (b'{"traceEvents": [{"ph":', "not whole JSON"),
        (b"", "not whole JSON"),
        (b'{"schema": 1}', "expected a Chrome trace"),
        (b"\xff\xfe\x00", "not whole JSON"),
    ],
)
def test_a_broken_trace_is_one_clear_line_that_names_the_file(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "broken.json.gz"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=words) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_absent_trace_is_a_record_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"absent\.json: cannot be read"):
        read_trace(tmp_path / "absent.json")
