"""The same questions, the same answers in processes and on a Ray cluster; in this process every other run shows."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from hotswap.extractor.new_task import new_task
from hotswap.models.errors import EnvironmentMissing
from hotswap.optimizer.court import Pace
from hotswap.optimizer.executors import Executor, ExecutorLost, Processes, devices

PACE: Pace = {"block_s": 0.002, "rounds": 4, "pool_bytes": 1 << 20}
REFERENCE = """
import torch


def reference(x):
    return x + 1


def inputs(seed, shape_index=0):
    return (torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)),)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("task")
    (made / "plus.py").write_text(REFERENCE)
    new_task(made / "plus.py", made / "plus")
    return made / "plus"


def judge_wrong(executor: Executor, folder: Path) -> None:
    """Ask every slot for a verdict that needs no timing, and see that it is a record with the judge's reason."""
    try:
        opened = [executor.open(slot, folder, PACE) for slot in range(executor.slots)]
        assert all(future.result(timeout=300) for future in opened)
        asked = [executor.verdict(slot, folder, "def other(x):\n    return x\n") for slot in range(executor.slots)]
        for future in asked:
            verdict = future.result(timeout=300)
            assert (verdict.accepted, verdict.stage) == (False, "screen")
            assert "defines no function `kernel`" in (verdict.reason or "")
    finally:
        executor.close()


@pytest.mark.slow
def test_two_processes_judge_at_once(folder: Path) -> None:
    judge_wrong(Processes([None, None], 1), folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_actors_of_a_local_ray_cluster_judge(folder: Path) -> None:
    pytest.importorskip("ray.actor")  # a folder of that name on the path is no Ray
    from hotswap.optimizer.ray_executor import OnRay

    judge_wrong(OnRay(2, cpus=0.5, threads=1), folder)
    gc.collect()  # Ray leaves handles of its processes to the collector, which warns of them: here, not in another test


@pytest.mark.gpu
def test_two_gpus_judge_at_once_each_in_its_process(tmp_path: Path) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    (tmp_path / "plus.py").write_text(REFERENCE)
    new_task(tmp_path / "plus.py", tmp_path / "plus", device="cuda")
    judge_wrong(Processes(devices(2)), tmp_path / "plus")


def test_a_process_that_died_is_an_error_and_not_a_verdict(tmp_path: Path) -> None:
    executor = Processes([None])
    try:
        executor._pools[0].submit(os._exit, 3)
        with pytest.raises(ExecutorLost, match="has died"):
            executor.verdict(0, tmp_path, "def kernel(x): return x").result(timeout=60)
    finally:
        executor.close()


def test_more_gpus_than_there_are_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert devices(2) == ["3", "5"]
    with pytest.raises(EnvironmentMissing, match="--gpus 3: 2 are visible"):
        devices(3)
