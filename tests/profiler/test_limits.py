"""What the machine can do: plausible, quick, kept on disk, and the best of what was seen."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hotswap.models.errors import EnvironmentMissing
from hotswap.profiler import limits as measuring
from hotswap.profiler.limits import last_level_cache_bytes, measure
from hotswap.profiler.recording import Limits


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Small buffers and few milliseconds a figure, and a cache of its own."""
    monkeypatch.setenv("HOTSWAP_CACHE", str(tmp_path))
    monkeypatch.setattr(measuring, "_LARGE_BYTES", 2**22)
    for name in ("_COPY_SECONDS", "_CURVE_SECONDS", "_MATMUL_SECONDS"):
        monkeypatch.setattr(measuring, name, 0.002)
    return tmp_path


def test_every_figure_is_measured_and_kept_on_disk(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measure("cpu")
    assert first.copy_gb_s > 0
    assert first.launch_us > 0
    assert first.matmul_tflop_s["float32"] > 0
    assert all(rate > 0 for _, rate in first.copy_curve)
    monkeypatch.setattr(measuring, "_measure_round", lambda device: pytest.fail("measured again"))
    assert measure("cpu") == first


def test_other_threads_are_other_limits(quick: Path) -> None:
    threads = torch.get_num_threads()
    measure("cpu")
    try:
        torch.set_num_threads(threads + 1)
        measure("cpu")
    finally:
        torch.set_num_threads(threads)
    assert len(list((quick / "limits").iterdir())) == 2


def test_measuring_again_keeps_the_best_of_both(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measure("cpu")
    rates = {**first.matmul_tflop_s, "float32": first.matmul_tflop_s["float32"] * 2}
    other = replace(first, copy_gb_s=first.copy_gb_s / 2, launch_us=first.launch_us / 2, matmul_tflop_s=rates)
    monkeypatch.setattr(measuring, "_measure_round", lambda device: other)
    again = measure("cpu", refresh=True)
    assert (again.copy_gb_s, again.launch_us) == (first.copy_gb_s, first.launch_us / 2)
    assert again.matmul_tflop_s["float32"] == rates["float32"]


def test_a_damaged_file_is_measured_anew(quick: Path) -> None:
    measure("cpu")
    (kept,) = (quick / "limits").iterdir()
    kept.write_text("{")
    assert measure("cpu").copy_gb_s > 0


def test_a_dtype_that_does_not_work_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measuring._matmul_tflop_s(torch.device("cpu"), torch.bool) is None


def test_the_cache_size_is_that_of_the_last_data_level(tmp_path: Path) -> None:
    for number, (level, kind, size) in enumerate([(1, "Data", "48K"), (3, "Unified", "30M"), (2, "Unified", "2048K")]):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in (("level", str(level)), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    assert last_level_cache_bytes(torch.device("cpu"), tmp_path) == 30 * 2**20
    assert last_level_cache_bytes(torch.device("cpu"), tmp_path / "absent") == 0


def test_small_copies_may_run_at_the_caches_rate_and_large_ones_not(limits: Limits) -> None:
    curved = replace(limits, copy_curve=((1000, 3.0), (2000, 9.0), (8000, 4.0)))
    # The best rate of any size at least as large as the largest measured one that fits: never below what is possible.
    assert [curved.copy_rate(moved) for moved in (10, 1500, 2000, 7999, 8000, 10**9)] == [9.0, 9.0, 9.0, 9.0, 4.0, 4.0]
    assert limits.copy_rate(10) == 1.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_an_absent_device_is_one_clear_line() -> None:
    with pytest.raises(EnvironmentMissing, match=r"cuda:0.*--device cpu"):
        measure("cuda:0")


@pytest.mark.slow
def test_measuring_takes_a_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSWAP_CACHE", str(tmp_path))
    start = time.perf_counter()
    measure("cpu")
    # 3 s on two idle cores; three times that before it is a fault of ours and not of a busy machine.
    assert time.perf_counter() - start < 9.0
